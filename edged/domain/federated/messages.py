"""Messages of a fleet over MQTT: topics, and JSON to and from dataclasses.

A round that is `open` names the model from which devices train. One that is `closed` takes no more updates
and names what came of it: the devices in `devices` try that model and report on `eval/`. One that is `done`
names the model that the fleet has now, for all. Numbers that come are plain JSON; what is not as described is
refused with RejectedUpdateError, whose reason is a word for counters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, TypeVar

from typing_extensions import Self

from edged.domain.json_fields import (
    MALFORMED,
    NAME,
    AtLeastOne,
    Count,
    Digest,
    Name,
    Names,
    NotNegative,
    Number,
    ShortText,
    ShortTexts,
    Token,
    count_from,
    parse_object,
    text_up_to,
)
from edged.domain.training.message import Message
from edged.errors import ConfigError, RejectedUpdateError, TrainingError

State = Literal["open", "closed", "done"]

Blob = bytes
PART_BYTES = 120 * 1024
"""Bytes of a model or update in one message: below 128 KiB with its line, the limit of some brokers."""

LONGEST_LINE = 8 * 1024
LARGEST_JSON = 1024**2
LARGEST_MODEL = 64 * 1024**2
"""Bytes of a fleet's model as it is sent; devices take no larger one."""

MOST_ROUNDS = 2**31

MOST_PARTS = 9 * 1024
Parts = Annotated[int, count_from(1, MOST_PARTS)]

M = TypeVar("M", bound=Message)


def read_received(kind: type[M], payload: bytes, limit: int, where: str) -> M:
    """Read a message of at most `limit` bytes from outside; RejectedUpdateError when it is malformed."""
    values = parse_object(payload, limit, where)
    try:
        return kind.from_json(values)
    except TrainingError as problem:
        raise RejectedUpdateError(MALFORMED, problem.what, where=problem.where) from None


@dataclass(frozen=True)
class BaseModelInfo(Message):
    """A model of the fleet: the fingerprint of its weights, and the bytes and parts that hold them."""

    hash: Digest
    bytes: AtLeastOne
    parts: Parts


@dataclass(frozen=True)
class FitSettings(Message):
    """Amount and pace of training; of `epochs` and `steps` exactly one is None."""

    epochs: AtLeastOne | None = 1
    steps: AtLeastOne | None = None
    learning_rate: NotNegative = 1e-3
    batch_size: AtLeastOne = 32

    @classmethod
    def from_json(cls, values: object) -> Self:
        """Read the settings; raise TrainingError unless they have either epochs or steps."""
        found = super().from_json(values)
        if (found.epochs is None) == (found.steps is None):
            raise TrainingError("expected either epochs or steps", where=f"{cls.__name__}.epochs")
        return found


@dataclass(frozen=True)
class RoundSettings(FitSettings):
    """Settings of training in a round over MQTT."""

    clip_norm: NotNegative = 1.0  # largest L2 norm of the whole update
    evaluate: bool = True  # whether devices report how good the base is for them


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
        """Common start of all topics, without the last slash."""
        return f"{self.root}/fl/{self.fleet}"

    @property
    def round(self) -> str:
        """Retained: the round that is under way, or the last one."""
        return f"{self.base}/round"

    @property
    def status(self) -> str:
        """Retained: what the coordinator is doing, for people."""
        return f"{self.base}/status"

    def model(self, digest: str, part: int | str) -> str:
        """Retained: a part of a model; `+` for all."""
        return f"{self.base}/model/{digest}/{part}"

    def up(self, number: int, device: str, part: int | None = None) -> str:
        """Return the topic of an update, or of a part of one that has several."""
        whole = f"{self.base}/up/{number}/{device}"
        return whole if part is None else f"{whole}/{part}"

    def ack(self, number: int | str) -> str:
        """Receipts for the updates of a round."""
        return f"{self.base}/ack/{number}"

    def state(self, device: str) -> str:
        """Retained: how a device is, and whether it would take part."""
        return f"{self.base}/state/{device}"

    def evaluation(self, number: int, device: str) -> str:
        """Return the topic of a device's report on the model of a round."""
        return f"{self.base}/eval/{number}/{device}"

    @property
    def of_devices(self) -> tuple[str, ...]:
        """The filters of what devices send: updates, states and evaluations."""
        base = self.base
        return f"{base}/up/#", f"{base}/state/+", f"{base}/eval/+/+"

    def sender(self, topic: str) -> tuple[str, str, int | None, int | None]:
        """Kind (`up`, `state` or `eval`), device, round and part that a topic names.

        Raises RejectedUpdateError when it is not a topic on which devices send.
        """
        kind, *levels = topic.removeprefix(f"{self.base}/").split("/")
        expected = {"up": (2, 3), "eval": (2,), "state": (1,)}.get(kind, ())
        numbers = levels[:1] + levels[2:] if kind != "state" else []
        if len(levels) not in expected or not all(map(_is_number, numbers)):
            raise RejectedUpdateError(MALFORMED, "no topic for devices", where=topic[:200])
        device = levels[-1] if kind == "state" else levels[1]
        if NAME.fullmatch(device) is None:
            raise RejectedUpdateError(MALFORMED, "no name of a device", where=topic[:200])
        found = [int(number) for number in numbers]
        return kind, device, found[0] if found else None, found[1] if len(found) > 1 else None


RoundNumber = Annotated[int, count_from(1, MOST_ROUNDS)]


@dataclass(frozen=True)
class FleetMessage(Message):
    """Base of dataclasses that are messages of one JSON object."""

    topic: ClassVar[str]
    longest: ClassVar[int] = LONGEST_LINE

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """From what came on the topic; RejectedUpdateError when it is not as described."""
        return read_received(cls, payload, cls.longest, cls.topic)

    def payload(self) -> bytes:
        """Encode the message as JSON."""
        return _json(self)


@dataclass(frozen=True)
class RoundAnnouncement(FleetMessage):
    """A round, as the coordinator announces it to all."""

    topic = "round"
    longest = LARGEST_JSON

    fleet: Name
    round: RoundNumber
    id: Token  # 16 random bytes: the same round number of another run is another round
    state: State
    bundle: ShortText  # fingerprint of the bundle that devices need
    base: BaseModelInfo
    opened: NotNegative  # seconds since the epoch, as the deadline
    deadline: NotNegative
    window: NotNegative  # seconds over which devices spread what they send
    devices: Names | None  # those that were chosen; None for all
    config: RoundSettings
    seal: ShortText | None = None  # public key to which what devices send is sealed; see `signing.seal`
    daily_bytes: Count = 0  # that a device may fetch and send a day (UTC); 0: any number

    def names(self, device: str) -> bool:
        """Return whether the round has chosen this device."""
        return self.devices is None or device in self.devices


@dataclass(frozen=True)
class UpdateHeader(Message):
    """The line before an update, or before each part of one."""

    device: Name
    round: RoundNumber
    id: Token
    base: Digest  # fingerprint of the weights to which the update is a difference
    samples: Count  # its weight in the mean
    bytes: AtLeastOne  # of the whole blob, as its hash
    sha256: Digest
    parts: Parts = 1  # how many messages carry it
    part: Count = 0  # which one of them this is, from 0

    @classmethod
    def read(cls, payload: Blob) -> tuple[UpdateHeader, Blob]:
        """The line, and the part of the blob after it."""
        line, found, blob = payload[: LONGEST_LINE + 1].partition(b"\n")
        if not found:
            raise RejectedUpdateError(MALFORMED, "an update starts with a line of JSON", where="up")
        made = read_received(cls, line, LONGEST_LINE, "up")
        if made.part >= made.parts:
            raise RejectedUpdateError(MALFORMED, f"part {made.part} of {made.parts}, from 0", where="up")
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
class Receipts(FleetMessage):
    """Updates that were accepted, by device, or refused, with the reason; a device named here is done."""

    topic = "ack"
    longest = LARGEST_JSON

    id: Token
    accepted: Names = ()
    refused: Mapping[str, ShortText] = field(default_factory=dict)


STOPPED = "the daemon has stopped"
"""Text of `why_not` from a device that stops."""


@dataclass(frozen=True)
class DeviceState(FleetMessage):
    """State of a device, and why it would not take part in a round."""

    topic = "state"

    device: Name
    at: NotNegative  # when this was so, seconds since the epoch
    bundle: ShortText
    version: ShortText
    samples: Count  # labelled ones that are new since it last took part
    ready: bool  # whether it would train if it were chosen, and else what keeps it from that
    why_not: ShortText
    idle: bool  # it has nothing else to train
    last_round: Annotated[int, count_from(0, MOST_ROUNDS)]  # it sent an update for; 0 before
    tags: ShortTexts = ()  # which canaries can be chosen by


@dataclass(frozen=True)
class Quality(Message):
    """Loss and the task's metric on the holdout of a device."""

    loss: Number
    metric: Number


@dataclass(frozen=True)
class Evaluation(FleetMessage):
    """Report of one device on the model `base` of a round."""

    topic = "eval"

    device: Name
    round: RoundNumber
    id: Token
    base: Digest
    samples: AtLeastOne  # of the holdout
    before: Quality  # what the device served before
    model: Quality
    standing: Quality | None  # the fleet's model before this one, where the device still has it
    taken: bool  # whether the device serves it now, and why or why not
    reason: Annotated[str, text_up_to(1000)]


def _is_number(level: str) -> bool:
    return level.isascii() and level.isdigit() and len(level) < 11


def split(blob: bytes) -> list[bytes]:
    """Pieces of at most `PART_BYTES`, one at least."""
    return [blob[at : at + PART_BYTES] for at in range(0, len(blob), PART_BYTES)] or [b""]


def joined(parts: Sequence[bytes], base: BaseModelInfo) -> bytes:
    """The bytes of a model from its parts; whose weights they are shows when they are unpacked.

    Raises RejectedUpdateError when parts are missing or have other sizes.
    """
    blob = b"".join(parts)
    if len(parts) != base.parts or len(blob) != base.bytes:
        said = f"{len(blob)} bytes in {len(parts)} parts, {base.bytes} in {base.parts} were announced"
        raise RejectedUpdateError(MALFORMED, said, where=f"model {base.hash[:12]}")
    return blob


def _json(message: Message) -> bytes:
    return json.dumps(message.to_json(), separators=(",", ":"), allow_nan=False).encode()
