"""What a fleet says over MQTT: topics, and messages to and from JSON.

A round that is `open` names the model from which devices train. One that is `closed` takes no more updates
and names what came of it: the devices in `devices` try that model and report on `eval/`. One that is `done`
names the model that the fleet has now, for all. Numbers that come are plain JSON; what is not as described is
refused with RejectedUpdateError, whose reason is a word for counters.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from edged.domain.federated.settings import MOST_PARTS, BaseModelInfo, RoundSettings
from edged.domain.json_fields import MALFORMED, NAME, read_object
from edged.errors import ConfigError, RejectedUpdateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

State = Literal["open", "closed", "done"]

Blob = bytes
PART_BYTES = 120 * 1024
"""Of a model or an update in one message: with its line it stays below 128 KiB, which some brokers take."""

LONGEST_LINE = 8 * 1024
LARGEST_JSON = 1024**2
MOST_ROUNDS = 2**31


@dataclass(frozen=True)
class FleetTopics:
    """All topics of a fleet.

    >>> FleetTopics("plant").up(3, "press-7"), FleetTopics("plant").up(3, "press-7", 2)
    ('edged/fl/plant/up/3/press-7', 'edged/fl/plant/up/3/press-7/2')
    """

    fleet: str
    root: str = "edged"

    def __post_init__(self) -> None:
        if NAME.fullmatch(self.fleet) is None:
            raise ConfigError("this is no name of a fleet", where=self.fleet[:80], remedy="such as plant-2")

    @property
    def base(self) -> str:
        """What all of them begin with, without the last slash."""
        return f"{self.root}/fl/{self.fleet}"

    @property
    def round(self) -> str:
        """Retained: the round that is under way, or the last one."""
        return f"{self.base}/round"

    def model(self, digest: str, part: int | str) -> str:
        """Retained: a part of a model; `+` for all."""
        return f"{self.base}/model/{digest}/{part}"

    def up(self, number: int, device: str, part: int | None = None) -> str:
        """Where an update goes, or a part of one that has several."""
        whole = f"{self.base}/up/{number}/{device}"
        return whole if part is None else f"{whole}/{part}"

    def ack(self, number: int | str) -> str:
        """Receipts for the updates of a round."""
        return f"{self.base}/ack/{number}"

    def state(self, device: str) -> str:
        """Retained: how a device is, and whether it would take part."""
        return f"{self.base}/state/{device}"

    def evaluation(self, number: int, device: str) -> str:
        """What a device makes of the model of a round."""
        return f"{self.base}/eval/{number}/{device}"

    @property
    def of_devices(self) -> tuple[str, str, str]:
        """The filters of what devices send: updates, states, evaluations."""
        return f"{self.base}/up/#", f"{self.base}/state/+", f"{self.base}/eval/+/+"

    def sender(self, topic: str) -> tuple[str, str, int | None, int | None]:
        """Kind (`up`, `state` or `eval`), device, round and part that a topic names.

        Raises
        ------
        RejectedUpdateError
            When it is not a topic on which devices send.
        """
        kind, *levels = topic.removeprefix(f"{self.base}/").split("/")
        expected = {"up": (2, 3), "eval": (2,), "state": (1,)}.get(kind, ())
        numbers = levels[:1] + levels[2:] if kind != "state" else []
        if len(levels) not in expected or not all(
            n.isascii() and n.isdigit() and len(n) < 11 for n in numbers
        ):
            raise RejectedUpdateError(MALFORMED, "no topic for devices", where=topic[:200])
        device = levels[-1] if kind == "state" else levels[1]
        if NAME.fullmatch(device) is None:
            raise RejectedUpdateError(MALFORMED, "no name of a device", where=topic[:200])
        found = [int(number) for number in numbers]
        return kind, device, found[0] if found else None, found[1] if len(found) > 1 else None


@dataclass(frozen=True)
class RoundAnnouncement:
    """A round, as everyone is told of it.

    Attributes
    ----------
    id
        16 random bytes in hexadecimal: the same round number of another run is another round.
    bundle
        Fingerprint of the bundle that devices need.
    opened, deadline
        Seconds since the epoch.
    window
        Seconds over which devices spread what they send.
    devices
        Those that were chosen; None for all.
    """

    fleet: str
    round: int
    id: str
    state: State
    bundle: str
    base: BaseModelInfo
    opened: float
    deadline: float
    window: float
    devices: tuple[str, ...] | None
    config: RoundSettings

    @classmethod
    def read(cls, payload: bytes) -> RoundAnnouncement:
        """From what came on the topic."""
        fields = read_object(payload, LARGEST_JSON, "round")
        return cls(
            fields.name("fleet"),
            fields.count("round", 1, MOST_ROUNDS),
            fields.token("id"),
            cast("State", fields.one_of("state", ("open", "closed", "done"))),
            fields.text("bundle"),
            BaseModelInfo.read(fields.inner("base")),
            fields.number("opened", 0.0),
            fields.number("deadline", 0.0),
            fields.number("window", 0.0),
            fields.optional("devices", fields.names),
            RoundSettings.read(fields.inner("config")),
        )

    def payload(self) -> bytes:
        """Encode the message as JSON."""
        return _json(self)

    def names(self, device: str) -> bool:
        """Whether this device was chosen."""
        return self.devices is None or device in self.devices


@dataclass(frozen=True)
class UpdateHeader:
    """The line before an update, or before each part of one.

    Attributes
    ----------
    base
        Fingerprint of the weights to which the update is a difference.
    samples
        Of the device's data that it was trained on: its weight in the mean.
    loss
        On the device's own holdout, after training; None where it has none.
    norm
        L2 norm of the difference as it is sent.
    bytes, sha256
        Of the whole blob.
    parts, part
        How many messages carry it, and which one this is, from 0.
    """

    device: str
    round: int
    id: str
    base: str
    samples: int
    loss: float | None
    norm: float
    bytes: int
    sha256: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    parts: int = 1
    part: int = 0

    @classmethod
    def read(cls, payload: Blob) -> tuple[UpdateHeader, Blob]:
        """The line, and the part of the blob after it."""
        line, found, blob = payload[: LONGEST_LINE + 1].partition(b"\n")
        if not found:
            raise RejectedUpdateError(MALFORMED, "an update begins with a line of JSON", where="up")
        fields = read_object(line, LONGEST_LINE, "up")
        parts = fields.count("parts", 1, MOST_PARTS)
        made = cls(
            fields.name("device"),
            fields.count("round", 1, MOST_ROUNDS),
            fields.token("id"),
            fields.digest("base"),
            fields.count("samples", 1, reason="samples"),
            fields.optional("loss", fields.number),
            fields.number("norm", 0.0),
            fields.count("bytes", 1),
            fields.digest("sha256"),
            fields.numbers("metrics"),
            parts,
            fields.count("part", 0, parts - 1),
        )
        return made, blob + payload[LONGEST_LINE + 1 :]

    def messages(self, topics: FleetTopics, blob: Blob) -> Iterator[tuple[str, Blob]]:
        """Topic and payload of each message that carries `blob`; size, hash and parts are set from it."""
        pieces = split(blob)
        whole = replace(
            self, bytes=len(blob), sha256=hashlib.sha256(blob).hexdigest(), parts=len(pieces), part=0
        )
        for part, piece in enumerate(pieces):
            topic = topics.up(self.round, self.device, part if len(pieces) > 1 else None)
            yield topic, _json(replace(whole, part=part)) + b"\n" + piece


@dataclass(frozen=True)
class Receipts:
    """Updates that were accepted, by device, or refused, with the reason; a device named here is done."""

    id: str
    accepted: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, payload: bytes) -> Receipts:
        """From what came on the topic."""
        fields = read_object(payload, LARGEST_JSON, "ack")
        refused = fields.inner("refused")
        devices = {device: refused.text(device) for device in refused}
        return cls(fields.token("id"), fields.names("accepted"), devices)

    def payload(self) -> bytes:
        """Encode the message as JSON."""
        return _json(self)


@dataclass(frozen=True)
class DeviceState:
    """How a device is, and whether it would take part in a round.

    Attributes
    ----------
    at
        When this was so, seconds since the epoch.
    samples
        Labelled ones that are new since it last took part.
    ready, why_not
        Whether it would train if it were chosen, and else what keeps it from that.
    idle, charged, cool
        Nothing else to train; power; temperature.
    last_round
        The last one it has sent an update for; 0 before.
    """

    device: str
    at: float
    bundle: str
    version: str
    samples: int
    ready: bool
    why_not: str
    idle: bool
    charged: bool
    cool: bool
    last_round: int

    @classmethod
    def read(cls, payload: bytes) -> DeviceState:
        """From what came on the topic."""
        fields = read_object(payload, LONGEST_LINE, "state")
        return cls(
            fields.name("device"),
            fields.number("at", 0.0),
            fields.text("bundle"),
            fields.text("version"),
            fields.count("samples"),
            fields.flag("ready"),
            fields.optional("why_not", fields.text) or "",
            fields.flag("idle"),
            fields.flag("charged"),
            fields.flag("cool"),
            fields.count("last_round", 0, MOST_ROUNDS),
        )

    def payload(self) -> bytes:
        """Encode the message as JSON."""
        return _json(self)


def _is_number(level: str) -> bool:
    return level.isascii() and level.isdigit() and len(level) < 11


def split(blob: bytes) -> list[bytes]:
    """Pieces of at most `PART_BYTES`, one at least."""
    return [blob[at : at + PART_BYTES] for at in range(0, len(blob), PART_BYTES)] or [b""]


def joined(parts: Sequence[bytes], base: BaseModelInfo) -> bytes:
    """The bytes of a model from its parts; whose weights they are shows when they are unpacked.

    Raises
    ------
    RejectedUpdateError
        When parts are missing or have other sizes.
    """
    blob = b"".join(parts)
    if len(parts) != base.parts or len(blob) != base.bytes:
        said = f"{len(blob)} bytes in {len(parts)} parts, {base.bytes} in {base.parts} were announced"
        raise RejectedUpdateError(MALFORMED, said, where=f"model {base.hash[:12]}")
    return blob


def _json(message: Any) -> bytes:
    return json.dumps(asdict(message), separators=(",", ":"), allow_nan=False).encode()
