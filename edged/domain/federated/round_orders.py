"""Orders to the trainer of a device in a fleet, and their results: beside `training.trainer_messages`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edged.domain.federated.messages import Quality, RoundAnnouncement
from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message
from edged.domain.training.trainer_messages import TrainingOrder
from edged.domain.training.training_run import Candidate

# ---- results ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeptUpdate(Message):
    """What is kept on the disk with the update of a round: what its line says, and what it has cost."""

    device: str
    round: int
    id: str
    base: str  # fingerprint of the weights to which it is a difference
    samples: int
    consumed: int  # position in label order up to which samples were there


@dataclass(frozen=True)
class RoundResult(Message):
    """What a device has given to a round; see `edged.trainer.fleet_rounds.RoundContribution`."""

    run: int
    number: int  # of the kept update
    about: KeptUpdate
    samples: int
    steps: int
    norm: float  # L2, of the difference as it is sent
    bytes: int  # size of the kept update
    seconds: float

    def record(self) -> JsonObject:
        """Return what `state.db` holds."""
        return self.without("run", "number", "about")


@dataclass(frozen=True)
class FleetModelResult(Message):
    """What a fleet's model is worth on the device's holdout."""

    run: int
    samples_judged: int
    before: Quality | None  # of the own weights, the fleet's model, and the one before it
    model: Quality | None
    standing: Quality | None
    candidate: Candidate | None = None  # the model, where it is to be adopted
    serves: bool = False  # whether the device serves it already
    taken: bool = False  # what the gate has made of it, and why; set by the daemon
    reason: str = ""

    def record(self) -> JsonObject:
        """Return what `state.db` holds."""
        return {"taken": self.taken, "reason": self.reason}


# ---- orders ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainRound(TrainingOrder[RoundResult]):
    """Train in a round of the fleet from the model in a file, for at most `seconds`."""

    round: RoundAnnouncement
    model: Path
    seconds: float


@dataclass(frozen=True)
class TryFleetModel(TrainingOrder[FleetModelResult]):
    """Evaluate a fleet's model, and make a candidate of it."""

    id: str  # of the round
    model: Path
    hash: str  # fingerprint of the model
    standing: Path | None  # the model that the fleet had before, and its fingerprint
    standing_hash: str | None
    adopt: bool  # whether a candidate is wanted


ROUND_ORDERS = (TrainRound, TryFleetModel)
