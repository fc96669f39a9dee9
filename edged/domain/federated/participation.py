"""Participation of a device in the rounds of a fleet: its record, and when it sends."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edged.domain.federated.messages import RoundAnnouncement
from edged.domain.federated.round_orders import KeptUpdate
from edged.domain.training.message import Message

DAY_SECONDS = 86_400
BUDGET_USED = "budget of bytes for today used"
"""Text of `why_not` from a device that can fetch and send nothing until tomorrow."""

RESEND_SECONDS = 20.0
"""Pause before an update without a receipt is sent again; further pauses double."""
RESEND_SPREAD = 0.5
"""Random variation of these pauses: devices that a broker has lost together do not return together."""
LONGEST_PAUSE = 3600.0
KEPT_ROUNDS = 16


@dataclass(frozen=True)
class MembershipRecord(Message):
    """Knowledge of a device about its fleet across restarts; its JSON is on the disk."""

    consumed: int = 0  # position in label order up to which samples were there when it last took part
    last_round: int = 0  # the last one that it has made an update for; 0 before the first
    rounds: tuple[str, ...] = ()  # ids of the newest ones that it has trained in
    settled: tuple[int, ...] = ()  # numbers of kept updates that need no sending any more
    judged: str = ""  # fingerprint of the fleet's model that was tried last
    standing: str = ""  # fingerprint of the one before it
    opened: float = 0.0  # when the newest round that was followed was opened, seconds since the epoch
    day: int = 0  # of the bytes below, days since the epoch
    traffic: int = 0  # bytes of models and updates on that day, where there is a budget of them

    def trained(self, about: KeptUpdate) -> MembershipRecord:
        """Record once that the device has trained in a round; `about` is what was kept with its update."""
        if about.id in self.rounds:
            return self
        rounds = (*self.rounds, about.id)[-KEPT_ROUNDS:]
        return replace(self, consumed=about.consumed, last_round=about.round, rounds=rounds)

    def done_with(self, number: int) -> MembershipRecord:
        """Record that an update has its receipt, or was refused."""
        return replace(self, settled=(*self.settled, number)[-KEPT_ROUNDS:])

    def following(self, announced: RoundAnnouncement) -> MembershipRecord:
        """Record that a round was announced that is at least as new as all before it."""
        return replace(self, opened=announced.opened)

    def tried(self, digest: str) -> MembershipRecord:
        """Record that a model of the fleet was evaluated."""
        return replace(self, judged=digest, standing=self.judged)

    def transferred(self, size: int, day: int) -> MembershipRecord:
        """Record bytes that were fetched or sent on a day."""
        before = self.traffic if day == self.day else 0
        return replace(self, day=day, traffic=before + size)

    def left(self, budget: int, day: int) -> float:
        """Bytes that may still be fetched and sent on a day; infinity without a budget."""
        return budget - (self.traffic if day == self.day else 0) if budget else float("inf")


def pause_before(sending: int, draw: float) -> float:
    """Seconds until an update without receipt is sent again, after so many attempts; `draw` is in [0, 1).

    >>> pause_before(1, 0.5), pause_before(3, 0.0), pause_before(99, 0.5)
    (20.0, 40.0, 3600.0)
    """
    pause = min(LONGEST_PAUSE, RESEND_SECONDS * 2.0 ** min(sending - 1, 20))
    return pause * (1.0 + RESEND_SPREAD * (2.0 * draw - 1.0))


def stranger(announced: RoundAnnouncement, fleet: str, bundle: str) -> str:
    """Return why a round is not for this device, in words; empty if it is."""
    if announced.fleet != fleet:
        return f"the round is of fleet {announced.fleet}"
    if announced.bundle != bundle:
        return f"the round is for bundle {announced.bundle[:12]}, here is {bundle[:12]}"
    return ""
