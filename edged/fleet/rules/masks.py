"""The masks of one round, seen by the coordinator: who has joined, shared and answered, and what that gives.

joining -> sharing -> collecting -> unmasking. A device that falls silent in one step is left out of the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from edged.domain.federated.mask_messages import (
    JOIN,
    KEY_BYTES,
    ROSTER,
    SEALED_BYTES,
    SHARES,
    UNMASK,
    UnmaskRequest,
    mask_purpose,
    packed,
    unpacked,
)
from edged.domain.federated.masking import (
    NEIGHBOURS,
    SHARE_BYTES,
    SecretJoiner,
    from_ring,
    neighbours,
    places,
    threshold,
)
from edged.errors import CorruptError, RejectedUpdateError
from edged.signing import AgreementKey, keystream

if TYPE_CHECKING:
    Ring = NDArray[np.uint64]
    Doubles = NDArray[np.float64]

Stage = Literal["joining", "sharing", "collecting", "unmasking"]


@dataclass
class Masks:
    """Everything that was said of the masks of the round with this `token`."""

    token: str
    since: float = 0.0  # when the present stage began, seconds since the epoch
    joined: dict[str, bytes] = field(default_factory=dict)  # two public keys of each device
    ring: Mapping[str, tuple[str, ...]] | None = None  # neighbours of those that had joined
    shares: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by sender, for each neighbour
    sharers: frozenset[str] | None = None
    survivors: frozenset[str] | None = None
    answers: dict[str, dict[str, bytes]] = field(default_factory=dict)  # by who has answered, of whom

    @property
    def stage(self) -> Stage:
        """What devices are waited for."""
        if self.ring is None:
            return "joining"
        if self.sharers is None:
            return "sharing"
        return "collecting" if self.survivors is None else "unmasking"

    # What devices say.

    def receive(self, device: str, step: str, payload: bytes) -> tuple[bool, str | None]:
        """Whether a message is new and must be stored, and the step whose message the device needs again.

        Raises RejectedUpdateError when it is not as it should be, or comes too late.
        """
        size = {JOIN: 2 * KEY_BYTES, SHARES: SEALED_BYTES, UNMASK: SHARE_BYTES}[step]
        line, bodies = unpacked(payload, size, step)
        if line.id != self.token:
            raise RejectedUpdateError("round", "the masks are of another round")
        if step == JOIN:
            return self._join(device, bodies)
        return self._share(device, bodies) if step == SHARES else self._answer(device, bodies)

    def _join(self, device: str, bodies: dict[str, bytes]) -> tuple[bool, str | None]:
        if set(bodies) != {device}:
            raise RejectedUpdateError("identity", f"{device} joins as {', '.join(bodies)[:80]}")
        if self.ring is None:
            news = self.joined.get(device) != bodies[device]
            self.joined[device] = bodies[device]
            return news, None
        if device not in self.ring or self.joined[device] != bodies[device]:
            raise RejectedUpdateError("masks", f"{device} has joined when the roster was made")
        return False, ROSTER

    def _share(self, device: str, bodies: dict[str, bytes]) -> tuple[bool, str | None]:
        if self.ring is None or set(bodies) != set(self.ring.get(device, ())):
            raise RejectedUpdateError("masks", f"{device} shares with others than its neighbours")
        if self.sharers is None:
            news = device not in self.shares
            self.shares.setdefault(device, bodies)
            return news, None
        if device not in self.sharers:
            raise RejectedUpdateError("masks", f"{device} has shared its keys too late")
        return False, SHARES

    def _answer(self, device: str, bodies: dict[str, bytes]) -> tuple[bool, str | None]:
        if self.survivors is None or device not in self.survivors:
            raise RejectedUpdateError("masks", f"{device} was not asked for shares")
        if set(bodies) != set(self.asked_of(device)):
            raise RejectedUpdateError("masks", f"{device} was asked for shares of others")
        news = device not in self.answers
        self.answers.setdefault(device, bodies)
        return news, None

    # What is decided.

    def make_roster(self, most: int = NEIGHBOURS) -> None:
        """All that have joined mask with their neighbours, of whom each has `most` at most."""
        self.ring = neighbours(self.joined, self.token, most)

    def choose_sharers(self) -> None:
        """Choose those who mask: enough of their neighbours have shared keys to find their secrets again."""
        ring, left = self.ring or {}, set(self.shares)
        while True:
            fitting = {n for n in left if 1 + len(left.intersection(ring[n])) >= threshold(1 + len(ring[n]))}
            if fitting == left:
                self.sharers = frozenset(left)
                return
            left = fitting

    def close(self, survivors: Collection[str]) -> None:
        """The sum is that of the updates of these devices."""
        self.survivors = frozenset(survivors)

    def with_whom(self, device: str) -> list[str]:
        """With whom a device masks: neighbours that have shared."""
        return [other for other in (self.ring or {})[device] if other in (self.sharers or ())]

    def asked_of(self, device: str) -> list[str]:
        """Of whom a device is asked for a share: itself, and with whom it masks."""
        return sorted((device, *self.with_whom(device)))

    def hopeless_with(self, there: Collection[str]) -> bool:
        """Whether these devices are too few to find every secret of those that have shared."""
        names = set(there)
        return any(len(names.intersection(self.asked_of(n))) < self._threshold(n) for n in self.sharers or ())

    @property
    def complete(self) -> bool:
        """Whether enough have answered to find every secret that is needed."""
        needed = (self.sharers or frozenset()) if self.survivors else frozenset()
        return bool(needed) and all(len(self._holders(n)) >= self._threshold(n) for n in needed)

    def _threshold(self, device: str) -> int:
        return threshold(1 + len((self.ring or {})[device]))

    def _holders(self, device: str) -> list[str]:
        """Who has answered with a share of this device's secret."""
        return [other for other in (device, *self.with_whom(device)) if other in self.answers]

    # What devices receive.

    def message_for(self, device: str, step: str) -> bytes:
        """The message to a device in a step."""
        ring = self.ring or {}
        if step == ROSTER:
            keys = {other: self.joined[other] for other in ring[device]}
            return packed(self.token, keys, len(ring))
        if step == SHARES:
            return packed(self.token, {n: self.shares[n][device] for n in self.with_whom(device)})
        there = self.survivors or frozenset()
        asked = self.asked_of(device)
        return UnmaskRequest(
            self.token, tuple(n for n in asked if n in there), tuple(n for n in asked if n not in there)
        ).payload()

    def unmasked(self, rows: Iterable[Ring], size: int) -> Doubles:
        """The sum of the survivors' vectors `(size,)`, from what they sent.

        Raises CorruptError when the shares of a secret do not fit together.
        """
        total = np.zeros(size, np.uint64)
        for row in rows:
            total += row
        for mask, sign in self._left_over(size):
            total = total - mask if sign > 0 else total + mask
        return from_ring(total, len(self.ring or ()))

    def _left_over(self, size: int) -> Iterator[tuple[Ring, int]]:
        """Masks that do not cancel out: those of each survivor alone, and those with who fell silent."""
        joiner, survivors = SecretJoiner(), self.survivors or frozenset()
        purpose = mask_purpose(self.token)
        for device in sorted(survivors):
            yield mask_of(self._secret(device, joiner), size), 1
        for device in sorted((self.sharers or frozenset()) - survivors):
            key = AgreementKey(self._secret(device, joiner))
            if key.public != self.joined[device][KEY_BYTES:]:
                raise CorruptError(f"the shares of the key of {device} are false", where="masks")
            for other in self.with_whom(device):
                if other in survivors:
                    shared = key.agreed(self.joined[other][KEY_BYTES:], purpose)
                    yield mask_of(shared, size), sign_of(other, device)

    def _secret(self, device: str, joiner: SecretJoiner) -> bytes:
        ring = self.ring or {}
        at = places((device, *ring[device]))
        shares = {at[other]: self.answers[other][device] for other in self._holders(device)}
        return joiner.join(shares, len(at))


def mask_of(key: bytes, size: int) -> Ring:
    """The mask `(size,)` of a key."""
    return np.frombuffer(keystream(key, 8 * size), "<u8").astype(np.uint64, copy=False)


def sign_of(device: str, other: str) -> int:
    """Whether a device adds (1) or subtracts (-1) the mask that it has with another one.

    >>> sign_of("a", "b"), sign_of("b", "a")
    (1, -1)
    """
    return 1 if device < other else -1
