"""What a device makes of a round that was announced: whether it trains, how, and when it sends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from edged.domain.federated.privacy import PrivacyLedger
from edged.domain.training.message import Message

if TYPE_CHECKING:
    from edged.domain.federated.messages import RoundAnnouncement
    from edged.domain.federated.round_orders import KeptUpdate
    from edged.domain.federated.settings import RoundSettings

LONGEST_PAUSE = 3600.0
KEPT_ROUNDS = 16


@dataclass(frozen=True)
class DeviceRules:
    """What a device insists on, whatever a round asks for."""

    clip_norm: float | None = None  # largest bound of the norm; None leaves it to the round
    noise: float = 0.0  # least multiplier of the noise
    personal: tuple[str, ...] = ()  # patterns of layers that stay here
    epsilon: float | None = None  # of the privacy budget; None for none
    delta: float = 1e-5
    masked: bool = False  # takes part only where updates come under masks


def terms(config: RoundSettings, own: DeviceRules) -> RoundSettings:
    """The settings by which this device trains: the round's, and nowhere laxer than its own rules."""
    bounds = [bound for bound in (config.clip_norm, own.clip_norm) if bound]
    return replace(
        config,
        clip_norm=min(bounds, default=0.0),
        noise=max(config.noise, own.noise),
        personal=tuple(dict.fromkeys((*config.personal, *own.personal))),
    )


def disagreement(config: RoundSettings, own: DeviceRules) -> str:
    """What of its own rules keeps a device from a round, in words: it would be refused; empty for nothing."""
    if config.statistics is not None and (own.noise or own.epsilon is not None):
        return "privacy: rounds of statistics add no noise, and fleet.noise asks for it here"
    if config.statistics is not None and own.personal:
        return "rounds of statistics need the same network everywhere, and fleet.personal keeps layers here"
    if own.masked and config.masks is None:
        return "privacy: fleet.masked is set here, and updates of this round come without masks"
    if own.noise <= config.most_noise:
        return ""
    most = f"{config.most_noise:g} (train.own_noise of the coordinator)"
    return f"privacy: fleet.noise is {own.noise:g} here, and the round takes at most {most}"


@dataclass(frozen=True)
class MembershipRecord(Message):
    """What a device knows of its fleet over restarts; its JSON is on the disk."""

    ledger: PrivacyLedger = field(default_factory=PrivacyLedger)  # of privacy
    consumed: int = 0  # position in label order up to which samples were there when it last took part
    last_round: int = 0  # the last one that it has made an update for; 0 before the first
    rounds: tuple[str, ...] = ()  # ids of the newest ones that it has trained in
    charged: tuple[int, ...] = ()  # numbers of kept updates that the ledger knows
    settled: tuple[int, ...] = ()  # numbers of kept updates that need no sending any more
    judged: str = ""  # fingerprint of the fleet's model that was tried last
    standing: str = ""  # fingerprint of the one before it
    opened: float = 0.0  # when the newest round that was followed was opened, seconds since the epoch
    taken: str = ""  # fingerprint of the fleet's model that was taken last, mixed or not
    day: int = 0  # of the bytes below, days since the epoch
    traffic: int = 0  # bytes of models and updates on that day, where there is a budget of them

    def trained(self, number: int, about: KeptUpdate) -> MembershipRecord:
        """After training in a round: its update will be sent, so the ledger is charged now, once.

        One that leaves the device under masks alone is charged by `masked`. `about` is what was kept with the
        update.
        """
        if number in self.charged:
            return self
        return replace(
            self,
            ledger=self._charged(about) if not about.masked else self.ledger,
            consumed=about.consumed,
            last_round=about.round,
            rounds=(*self.rounds, about.id)[-KEPT_ROUNDS:],
            charged=(*self.charged, number)[-KEPT_ROUNDS:],
        )

    def masked(self, about: KeptUpdate) -> MembershipRecord:
        """Before an update is sent under masks: with too few other devices it never is, and costs nothing."""
        return replace(self, ledger=self._charged(about))

    def _charged(self, about: KeptUpdate) -> PrivacyLedger:
        return self.ledger.charged(about.noise) if about.noise else self.ledger

    def done_with(self, number: int) -> MembershipRecord:
        """After the receipt for an update, or its refusal."""
        return replace(self, settled=(*self.settled, number)[-KEPT_ROUNDS:])

    def following(self, announced: RoundAnnouncement) -> MembershipRecord:
        """After a round was announced that is at least as new as all before it."""
        return replace(self, opened=announced.opened)

    def tried(self, digest: str, *, taken: bool) -> MembershipRecord:
        """Record that a model of the fleet was evaluated, and whether the device serves it now."""
        return replace(self, judged=digest, standing=self.judged, taken=digest if taken else self.taken)

    def transferred(self, size: int, day: int) -> MembershipRecord:
        """Record bytes that were fetched or sent on a day."""
        before = self.traffic if day == self.day else 0
        return replace(self, day=day, traffic=before + size)

    def left(self, budget: int, day: int) -> float:
        """Bytes that may still be fetched and sent on a day; infinity without a budget."""
        return budget - (self.traffic if day == self.day else 0) if budget else float("inf")


def pause_before(sending: int, first: float, spread: float, draw: float) -> float:
    """Seconds until an update without receipt is sent again, after so many sendings.

    They double, at most an hour, and vary by `spread` in both directions with `draw` in [0, 1): devices that
    a broker has lost together do not come back together.

    >>> pause_before(1, 30.0, 0.0, 0.9), pause_before(3, 30.0, 0.5, 0.0), pause_before(99, 30.0, 0.0, 0.0)
    (30.0, 60.0, 3600.0)
    """
    pause = min(LONGEST_PAUSE, first * 2.0 ** min(sending - 1, 20))
    return pause * (1.0 + spread * (2.0 * draw - 1.0))


def stranger(announced: RoundAnnouncement, fleet: str, bundle: str) -> str:
    """Why a round is none of this device's, in words; empty when it is."""
    if announced.fleet != fleet:
        return f"the round is of fleet {announced.fleet}"
    if announced.bundle != bundle:
        return f"the round is for bundle {announced.bundle[:12]}, here is {bundle[:12]}"
    return ""
