"""Masks of a device in a round, so that the coordinator sees only the sum of all updates.

The secrets are of one round and never on the disk: a device that restarts is one that has fallen silent.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edged.device.fleet_member.transports import FleetTransport
from edged.domain.federated.mask_messages import (
    JOIN,
    KEY_BYTES,
    ROSTER,
    SEALED_BYTES,
    SHARES,
    UNMASK,
    Named,
    UnmaskRequest,
    mask_purpose,
    packed,
    share_purpose,
    unpacked,
)
from edged.domain.federated.masking import (
    FEWEST,
    SECRET_BYTES,
    SHARE_BYTES,
    flat,
    split_secret,
    threshold,
    to_ring,
)
from edged.domain.federated.participation import pause_before
from edged.domain.training.weight_coding import decode
from edged.errors import RefusedError, RejectedUpdateError
from edged.mqtt import weight_encoding
from edged.mqtt.weight_encoding import MAX_BYTES, fleet_model
from edged.signing import AgreementKey, decrypt, encrypt, keystream
from edged.storage.models.fleet import FleetModels, SentUpdates

if TYPE_CHECKING:
    from edged.domain.federated.messages import FleetTopics, RoundAnnouncement, RoundSettings
    from edged.domain.federated.round_orders import KeptUpdate

    Ring = NDArray[np.uint64]
    Doubles = NDArray[np.float64]


@dataclass
class RoundMasks:
    """Masks of the device `name` in the round with this `token`; see `edged.fleet.rules.masks`."""

    name: str
    token: str
    cipher: AgreementKey = field(default_factory=AgreementKey)
    mask: AgreementKey = field(default_factory=AgreementKey)
    seed: bytes = field(default_factory=lambda: secrets.token_bytes(SECRET_BYTES))

    def __post_init__(self) -> None:
        self.count = 0
        self._peers: dict[str, bytes] = {}
        self._own: tuple[bytes, bytes] = (b"", b"")
        self._held: dict[str, tuple[bytes, bytes]] | None = None  # shares of each with whom it masks
        self._shared = self._answered = b""
        self._answered_request: bytes | None = None  # the request for shares that was answered

    def join(self) -> bytes:
        """The message with the device's public keys."""
        return packed(self.token, {self.name: self.cipher.public + self.mask.public})

    def share(self, roster: bytes) -> bytes:
        """The message with encrypted shares for each neighbour of a roster, the same for all calls.

        Raises RejectedUpdateError when the roster has too few of them to hide any device.
        """
        if self._shared:
            return self._shared
        line, keys = self._read(roster, 2 * KEY_BYTES, ROSTER)
        if self.name in keys or len(keys) + 1 < FEWEST:
            raise RejectedUpdateError("masks", f"{len(keys)} neighbours, at least {FEWEST - 1} are needed")
        self.count, self._peers = max(line.count, len(keys) + 1), keys
        seeds, privates = (split_secret(part, (self.name, *keys)) for part in (self.seed, self.mask.private))
        self._own = seeds[self.name], privates[self.name]
        bodies = {n: self._sealed(n, seeds[n] + privates[n]) for n in keys}
        self._shared = packed(self.token, bodies)
        return self._shared

    def _sealed(self, other: str, message: bytes) -> bytes:
        key = self.cipher.agreed(self._peers[other][:KEY_BYTES], share_purpose(self.token, self.name))
        return encrypt(key, message, f"{self.name} {other}".encode())

    def hold(self, shares: bytes) -> None:
        """Take the shares of those with whom it masks; once."""
        if self._held is not None:
            return
        _, bodies = self._read(shares, SEALED_BYTES, SHARES)
        if not bodies.keys() <= self._peers.keys() or 1 + len(bodies) < threshold(1 + len(self._peers)):
            raise RejectedUpdateError("masks", "the shares are not of enough neighbours")
        held = {}
        for other, sealed in bodies.items():
            key = self.cipher.agreed(self._peers[other][:KEY_BYTES], share_purpose(self.token, other))
            try:
                both = decrypt(key, sealed, f"{other} {self.name}".encode())
            except ValueError:
                raise RejectedUpdateError("masks", f"the shares of {other} cannot be read") from None
            held[other] = both[:SHARE_BYTES], both[SHARE_BYTES:]
        self._held = held

    @property
    def ready(self) -> bool:
        """Whether it is known with whom it masks."""
        return self._held is not None

    def masked(self, vector: Doubles) -> Ring:
        """The vector `(n,)` under all masks: call it for one vector alone.

        Raises RefusedError when its numbers do not fit.
        """
        total = to_ring(vector, self.count) + self._mask(self.seed, len(vector))
        for other in self._held or {}:
            key = self.mask.agreed(self._peers[other][KEY_BYTES:], mask_purpose(self.token))
            mask = self._mask(key, len(vector))
            total = total + mask if self.name < other else total - mask
        return total

    @staticmethod
    def _mask(key: bytes, size: int) -> Ring:
        return np.frombuffer(keystream(key, 8 * size), "<u8").astype(np.uint64, copy=False)

    def unmask(self, request: bytes) -> bytes:
        """The message with the shares that are asked for: of each device only one of its secrets.

        Raises RefusedError when another request was answered before, or both are asked for.
        """
        if self._answered_request is not None and self._answered_request != request:
            raise RefusedError("the coordinator asks for other shares than before", where="masks")
        if self._answered:
            return self._answered
        asked, held = UnmaskRequest.read(request), {**(self._held or {}), self.name: self._own}
        names = {*asked.survived, *asked.dropped}
        if (
            asked.id != self.token
            or names != held.keys()
            or len(names) != len((*asked.survived, *asked.dropped))
        ):
            raise RefusedError("the coordinator asks for shares that it must not have", where="masks")
        if self.name in asked.dropped or len(asked.survived) < threshold(1 + len(self._peers)):
            raise RefusedError("the coordinator names too few devices whose update has come", where="masks")
        seeds = {name: held[name][0] for name in asked.survived}
        self._answered_request = request
        self._answered = packed(self.token, seeds | {name: held[name][1] for name in asked.dropped})
        return self._answered

    def _read(self, payload: bytes, size: int, what: str) -> tuple[Named, dict[str, bytes]]:
        line, bodies = unpacked(payload, size, what)
        if line.id != self.token:
            raise RejectedUpdateError("round", "the masks are of another round")
        return line, bodies


@dataclass
class _Said:
    """A message that is sent again until what it waits for has come."""

    topic: str
    payload: bytes
    at: float
    sendings: int = 0


@dataclass(frozen=True)
class MaskedUpdate:
    """The vector of an update under masks, as it is sent, and the number of the kept update."""

    number: int
    about: KeptUpdate
    blob: bytes


class MaskedRounds:
    """Takes part in the masks of the round that is open, on the thread of its member."""

    def __init__(self, device: str, topics: FleetTopics, transport: FleetTransport) -> None:
        self._device, self._topics, self._transport = device, topics, transport
        self._transferred = 0
        self.drop()

    def drop(self) -> None:
        """Forget the round and all of its secrets."""
        self._masks: RoundMasks | None = None
        self._round: RoundAnnouncement | None = None
        self._said: _Said | None = None
        self._kept: tuple[int, KeptUpdate] | None = None
        self._sent = False

    def transferred(self) -> int:
        """Bytes that were said and heard of masks since this was last asked."""
        size, self._transferred = self._transferred, 0
        return size

    def follow(self, announced: RoundAnnouncement) -> None:
        """Forget the masks of any other round, and of this one once it has ended."""
        if self._round is not None and (announced.id != self._round.id or announced.state != "open"):
            self.drop()

    def join(self, announced: RoundAnnouncement, now: float) -> None:
        """Tell the coordinator the device's keys, while it trains; once."""
        if self._round is None or self._round.id != announced.id:
            self.drop()
            self._round, self._masks = announced, RoundMasks(self._device, announced.id)
            self._say(JOIN, self._masks.join(), now)

    def trained(self, number: int, about: KeptUpdate) -> None:
        """The update of the round is kept under `number`."""
        if self._round is not None and self._round.id == about.id:
            self._kept = number, about

    def receive(self, topic: str, payload: bytes, now: float) -> None:
        """Do what the coordinator asks for.

        Raises RejectedUpdateError or RefusedError when it asks for what it must not have.
        """
        self._transferred += len(payload)
        number, _, step = topic.split("/")[-3:]
        masks, announced = self._masks, self._round
        if masks is None or announced is None or number != str(announced.round):
            return
        if step == ROSTER:
            if not masks.ready:
                self._say(SHARES, masks.share(payload), now)
        elif step == SHARES:
            masks.hold(payload)
            self._said = None
        elif step == UNMASK:
            self._publish(self._topic(announced, UNMASK), masks.unmask(payload))

    def advance(self, now: float, updates: SentUpdates, models: FleetModels) -> MaskedUpdate | None:
        """Say again what has not been heard; the update under masks once it can be made.

        Raises RefusedError when its numbers do not fit.
        """
        said = self._said
        if said is not None and said.at <= now and self._transport.connected:
            self._publish(said.topic, said.payload)
            said.sendings += 1
            said.at = now + pause_before(said.sendings, random.random())
        masks, kept, announced = self._masks, self._kept, self._round
        if masks is None or kept is None or announced is None or not masks.ready or self._sent:
            return None
        sent, model = updates.get(kept[0]), models.path(announced.base.hash)
        if sent is None or model is None:
            return None
        self._sent = True  # before anything may fail: the masks are for one vector alone
        base = fleet_model(model, announced.base.hash, MAX_BYTES)
        vector = vector_of(announced.config, sent.blob, kept[1].samples, base)
        return MaskedUpdate(*kept, weight_encoding.pack_masked(masks.masked(vector)))

    def _say(self, step: str, payload: bytes, now: float) -> None:
        if self._round is not None:
            self._said = _Said(self._topic(self._round, step), payload, now)

    def _publish(self, topic: str, payload: bytes) -> None:
        self._transport.publish(topic, payload)
        self._transferred += len(payload)

    def _topic(self, announced: RoundAnnouncement, step: str) -> str:
        return self._topics.mask(announced.round, self._device, step)


def vector_of(
    config: RoundSettings, blob: bytes, samples: int, base: Mapping[str, NDArray[np.float32]]
) -> Doubles:
    """What a kept update adds to the sum: weighed by its samples, and that weight last."""
    most = config.masks.max_samples if config.masks is not None else samples
    weight = min(samples, most) / most
    change = flat(
        decode(weight_encoding.unpack_coded(blob)), {name: value.shape for name, value in base.items()}
    )
    return np.append(weight * change, weight)
