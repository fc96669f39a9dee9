"""Orders to the trainer of a device in a fleet, and their results: beside `training.trainer_messages`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edged.domain.federated.messages import FitSettings, Quality, RoundAnnouncement
from edged.domain.json_fields import Count, JsonObject, NotNegative
from edged.domain.training.message import Message
from edged.domain.training.trainer_messages import TrainingOrder
from edged.domain.training.training_run import Candidate

# ---- rounds by a program on this machine, such as Flower's ClientApp ---------------------------


@dataclass(frozen=True)
class FitRequest(FitSettings):
    """A round of training that a program on this machine requests.

    `proximal_mu` is μ of the penalty ½·μ·‖w − w₀‖² for the distance to the received weights (FedProx; Li et
    al. 2020, "Federated optimization in heterogeneous networks"). `round` is for records and events.
    """

    proximal_mu: NotNegative = 0.0
    round: Count = 0


@dataclass(frozen=True)
class TrialRequest(Message):
    """A request to judge weights; with `offer` the gate may bring them into service."""

    offer: bool = False
    round: Count = 0


# ---- results ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeptUpdate(Message):
    """Description of a stored update: the fields of its header line, and the samples that it used."""

    device: str
    round: int
    id: str
    base: str  # fingerprint of the weights to which it is a difference
    samples: int
    consumed: int  # position in label order up to which samples were there


@dataclass(frozen=True)
class RoundResult(Message):
    """Contribution of a device to a round; see `edged.trainer.fleet_rounds.RoundContribution`."""

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
class TrainedWeights(Message):
    """Result of training from received weights; the new ones lie in the order's file `trained`.

    `norm` is the L2 norm of the change, `quality` that of the new weights on the newest training samples.
    """

    run: int
    samples: int
    steps: int
    norm: float
    quality: Quality | None
    seconds: float

    def record(self) -> JsonObject:
        """Return what `state.db` holds."""
        return self.without("run", "quality")


@dataclass(frozen=True)
class FleetModelResult(Message):
    """Quality of a fleet's model on the device's holdout."""

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
class TrainFrom(TrainingOrder[TrainedWeights]):
    """Train from the weights with this `hash` in the file `model`, for at most `seconds`.

    The trainer writes the new trainable weights to the file `trained`, as safetensors.
    """

    settings: FitRequest
    model: Path
    hash: str
    trained: Path
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


ROUND_ORDERS = (TrainRound, TrainFrom, TryFleetModel)
