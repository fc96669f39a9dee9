"""Messages between the daemon and the trainer: orders, what comes within a run, and reports.

`edged.domain.child_orders` has what all children share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edged.domain.child_orders import Order, OrderFailed, R_co
from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message
from edged.domain.training.training_run import (
    Base,
    Candidate,
    RunOptions,
    RunResult,
)

NO_DATA = "no_data"
"""Reason of an `OrderFailed` when nothing is new to learn from."""


@dataclass(frozen=True)
class SuspectLabel(Message):
    """A label that a model contradicts which was fitted without it.

    `label` and `answer` are class indices, `label_confidence` and `confidence` what the model gives them.
    """

    offset: int
    label: int
    answer: int
    label_confidence: float
    confidence: float


@dataclass(frozen=True)
class SampleMap(Message):
    """Places of samples, `n` of each: `x` and `y` between −1 and 1, and what the same model answers."""

    offsets: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    answers: tuple[int, ...]
    confidences: tuple[float, ...]


@dataclass(frozen=True)
class LabelReview(Message):
    """A review of the newest `labels` labels, the most suspect first; no sample's values are in it."""

    labels: int
    suspects: tuple[SuspectLabel, ...]
    points: SampleMap


# ---- orders ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingOrder(Order[R_co]):
    """An order to the trainer; `run` is the number of the run that it is about."""

    run: int


@dataclass(frozen=True)
class RunRequest(TrainingOrder[RunResult]):
    """Carry out a training run.

    With `resumes` it continues the run that the checkpoint was made in, if that was cut off. With `unjudged`
    it exports the candidate of the checkpoint's finished run again, and trains only if there is none.
    """

    trigger: str
    options: RunOptions = field(default_factory=RunOptions)
    resumes: bool = True
    unjudged: bool = False


@dataclass(frozen=True)
class AdoptWeights(TrainingOrder[Candidate]):
    """Make a candidate of the weights in a transfer."""

    folder: Path


@dataclass(frozen=True)
class AdoptModel(TrainingOrder[Candidate]):
    """Make a candidate of the model file in a transfer."""

    folder: Path


@dataclass(frozen=True)
class AdoptInitial(TrainingOrder[Candidate]):
    """Make a candidate of the bundle's own model; `transfer` and `update` name how the bundle came."""

    transfer: str
    update: str


@dataclass(frozen=True)
class ReviewLabels(TrainingOrder[LabelReview]):
    """Say which of the newest labels others contradict; those at the offsets `confirmed` are right."""

    confirmed: tuple[int, ...]


@dataclass(frozen=True)
class Setup(Message):
    """The first line: the configuration as JSON text, constants of training, whether to wait for the disk."""

    config: str
    base: Base = "checkpoint"
    durable: bool = True
    constants: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Pace(Message):
    """Pause after each step for `pause` times its length; without end for None. May come within a run."""

    pause: float | None


@dataclass(frozen=True)
class WriteCheckpoint(Message):
    """Write a checkpoint after the present step. May come within a run."""


# ---- reports ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready(Message):
    """The trainer accepts orders now."""

    pid: int


@dataclass(frozen=True)
class RunProgress(Message):
    """Progress of a run; `steps` is None before the trainer has said how many it makes."""

    run: int
    step: int = 0
    steps: int | None = None
    loss: float | None = None

    def to_json(self) -> JsonObject:
        """Return the progress as states, metrics and answers show it."""
        return super().to_json() if self.steps is not None else {"run": self.run, "step": self.step}


@dataclass(frozen=True)
class CheckpointWritten(Message):
    """A checkpoint was published."""

    generation: int
    step: int


@dataclass(frozen=True)
class RunPaused(Message):
    """A run that is paused without end still lives."""


@dataclass(frozen=True)
class BadSamples(Message):
    """Samples at these offsets cannot be learned from."""

    offsets: tuple[int, ...]


@dataclass(frozen=True)
class DamagedCheckpoint(Message):
    """A damaged generation was passed over."""

    generation: int


@dataclass(frozen=True)
class LogLine(Message):
    """A line for the log."""

    what: str


ORDERS = (
    Setup, Pace, WriteCheckpoint,
    RunRequest, AdoptWeights, AdoptModel, AdoptInitial, ReviewLabels,
)  # fmt: skip
REPORTS = (
    OrderFailed,
    Ready, RunProgress, CheckpointWritten, RunPaused, BadSamples, DamagedCheckpoint,
    LogLine,
)  # fmt: skip
