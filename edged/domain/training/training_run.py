"""Training runs: their options, their results, and the candidates that go before the gate.

What `to_json` of `RunOptions`, `ModelData`, `Received` and `KeptUpdate` gives, and `RunResult.record`, is
public or on the disk, and keeps its names.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from edged.domain.json_fields import JsonObject
from edged.domain.judging.verdict import Verdict
from edged.domain.training.message import Message, SparseMessage

Base = Literal["checkpoint", "champion", "bundle"]
"""Which weights a run begins with."""

Source = Literal["training", "weights", "bundle_install"]
"""Where a candidate comes from; the registry keeps it with the model."""


@dataclass(frozen=True)
class RunOptions(Message):
    """Options of a run beyond the configuration; None takes the configured value."""

    steps: int | None = None
    epochs: float | None = None  # passes over the new samples, instead of `steps`
    learning_rate: float | None = None
    new_share: float | None = None
    base: Base | None = None
    dry_run: bool = False  # leave a candidate and nothing else: the learner does not continue from it

    def to_json(self) -> JsonObject:
        """Return what is asked for, as the record of a run holds it."""
        return self.without(*[f.name for f in fields(self) if getattr(self, f.name) == f.default])

    @property
    def of_memory(self) -> bool:
        """True if a run on remembered samples alone is worthwhile."""
        return bool(self.steps or self.epochs or self.base or self.dry_run)

    @property
    def of_process(self) -> bool:
        """True if the run needs a trainer process of its own."""
        return bool(self.base or self.dry_run)


@dataclass(frozen=True)
class RunCause(RunOptions):
    """Cause of a run: its options, and the commands, the transfer or the round that it is of."""

    asked_by: tuple[str, ...] = ()  # keys of the commands
    resumes: int | None = None  # the run that it continues
    transfer: str | None = None
    round: int | None = None  # of the fleet: its number and its id
    id: str | None = None


@dataclass(frozen=True)
class ModelData(Message):
    """Origin of a model as the registry knows it; None where it does not say.

    `consumed` is the position in label order up to which the model has learned, with `classes` at its start.
    Of weights that came from elsewhere: the name of the `transfer` and the fingerprint `update`.
    """

    first_offset: int | None = None
    last_offset: int | None = None
    samples: int | None = None
    transfer: str | None = None
    update: str | None = None
    bundle: str | None = None
    consumed: int | None = None
    classes: int | None = None

    def to_json(self) -> JsonObject:
        """Return what is known as JSON values; with `samples` their offsets, too, known or not."""
        window = () if self.samples is None else ("first_offset", "last_offset")
        known = super().to_json().items()
        return {name: value for name, value in known if value is not None or name in window}


@dataclass(frozen=True)
class Received(SparseMessage):
    """Transfer that weights came with, and what was made of them."""

    transfer: str  # its name, or the id of the round
    update: str  # fingerprint of what came

    def record(self) -> JsonObject:
        """Return what `state.db` holds of the run that took them in."""
        return self.to_json()


@dataclass(frozen=True)
class Candidate(Message):
    """A model for the gate, and what the registry records of it."""

    run: int
    folder: Path
    bundle: str | None
    source: Source = "training"
    generation: int | None = None  # the checkpoint that holds its state; None if it was not trained here
    loss_last: float | None = None
    samples: int = 0  # the data window
    first_offset: int | None = None
    last_offset: int | None = None
    received: Received | None = None  # None if it was trained here
    consumed: int | None = None  # position in label order up to which it has learned; None if not known
    classes: int | None = None  # that there were when it began to learn; None where they are fixed

    def data(self) -> ModelData:
        """Return what the registry keeps as the model's data."""
        same = ("first_offset", "last_offset", "samples", "bundle", "consumed", "classes")
        received = {} if self.received is None else vars(self.received)
        return ModelData(**{name: getattr(self, name) for name in same}, **received)


@dataclass(frozen=True)
class JudgedCandidate(Message):
    """A candidate, the verdict on it, and the version under which it serves; None where it does not.

    `summary` says in plain words what was learned and what became of it.
    """

    candidate: Candidate
    verdict: Verdict
    promoted: int | None = None
    summary: str = ""

    def without(self, *names: str) -> JsonObject:
        """Return what a command that has asked for the run is answered, except these fields."""
        received = {} if self.candidate.received is None else self.candidate.received.to_json()
        told = {"run": self.candidate.run, **received, **self.verdict.to_json()}
        told |= {"summary": self.summary, "promoted": self.promoted}
        return {name: value for name, value in told.items() if name not in names}


@dataclass(frozen=True)
class RunResult(Message):
    """Result of a training run: its data, its checkpoint and its candidate."""

    run: int
    trigger: str
    generation: int | None  # the checkpoint after it; None for a dry run
    candidate: Path
    samples: int  # that were new, and their offsets
    first_offset: int | None
    last_offset: int | None
    consumed: int  # position in label order up to which everything has been learned
    remembered: int  # samples that are kept to be learned from again
    memory: tuple[int, ...]  # offsets of the samples that must stay in the log
    bundle: str
    steps: int
    skipped: int  # steps whose loss was not finite
    loss_first: float | None  # mean over the first tenth of the steps, and over the last
    loss_last: float | None
    engine: str
    seconds: float
    written: int | None = None  # bytes written to the disk; None where the kernel does not tell
    classes: int | None = None  # that there were at its start; None where they are fixed

    def record(self) -> JsonObject:
        """Return what `state.db` and the event `training_finished` hold."""
        return self.without("run", "memory", "classes")  # long, or said already

    def end(self) -> RunEnd:
        """Return what those are told who have asked for the run."""
        return RunEnd.from_json({**self.record(), "run": self.run})

    def to_candidate(self) -> Candidate:
        """Return the candidate of the run, for the gate."""
        same = (
            "run",
            "bundle",
            "generation",
            "loss_last",
            "samples",
            "first_offset",
            "last_offset",
            "consumed",
            "classes",
        )
        return Candidate(folder=self.candidate, **{name: getattr(self, name) for name in same})


@dataclass(frozen=True)
class RunEnd(Message):
    """The end of a run, for those who have asked for it: read from its record, which may lack fields."""

    run: int
    engine: str | None = None
    steps: int | None = None
    samples: int | None = None
    skipped: int | None = None
    seconds: float | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    generation: int | None = None
    outcome: str = "done"  # or `failed`, `no_data`, `stopped`, with an `error`
    error: str | None = None

    def answer(self) -> JsonObject:
        """Return what a command that has asked for the run is answered."""
        return self.without("error")

    def record(self) -> JsonObject:
        """Return what `state.db` and the event `training_finished` hold of a run without a result."""
        return {"error": self.error}
