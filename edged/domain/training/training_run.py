"""Training runs: their options, their results, and the candidates that go before the gate.

What `RunOptions.to_json`, `RunResult.record`, `Received.to_json` and `KeptUpdate.to_json` give is public or
on the disk, and keeps its names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from edged.domain.federated.evaluation import Quality
from edged.domain.judging.challenger_test import ContestErrors
from edged.domain.training.message import Message

Base = Literal["checkpoint", "champion", "bundle"]
"""Which weights a run begins with."""

Source = Literal["training", "weights", "bundle_install"]
"""Where a candidate comes from; the registry keeps it with the model."""


# ---- what is handed to the gate --------------------------------------------------------------


@dataclass(frozen=True)
class Received(Message):
    """Which transfer weights came with, and what was made of them.

    Attributes
    ----------
    transfer, update
        Name of the transfer, or id of the round; fingerprint of what came.
    share
        Of these weights in the mixture with the champion's own; None where nothing was mixed.
    losses
        On the holdout, by share.
    """

    transfer: str
    update: str
    share: float | None = None
    losses: Mapping[str, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what is known, as events and the registry hold it."""
        return {name: value for name, value in super().to_json().items() if value is not None}


@dataclass(frozen=True)
class Candidate(Message):
    """A model for the gate, and what the registry records of it.

    Attributes
    ----------
    run
        The run that has made it.
    folder
        Where it was published.
    generation
        The checkpoint that holds its state; None for one that was not trained here.
    samples, first_offset, last_offset
        The data window.
    received
        How it came to the device; None for one that was trained here.
    contest
        Errors by which a challenger has won.
    beside
        Folder of another candidate of the same run, which is judged after this one.
    """

    run: int
    folder: Path
    bundle: str | None
    source: Source = "training"
    generation: int | None = None
    loss_last: float | None = None
    samples: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    received: Received | None = None
    contest: ContestErrors | None = None
    beside: Path | None = None

    def told(self) -> dict[str, Any]:
        """Return what events and records of runs say of weights that came from elsewhere."""
        return {} if self.received is None else self.received.to_json()

    def data(self) -> dict[str, Any]:
        """Return what the registry keeps as the model's data."""
        window = {name: getattr(self, name) for name in ("first_offset", "last_offset", "samples")}
        return window | self.told() | ({} if self.bundle is None else {"bundle": self.bundle})


# ---- results ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Challenge(Message):
    """The candidate of a challenger that has won, and the errors by which it did."""

    candidate: Path
    contest: ContestErrors


NOT_RECORDED = ("run", "memory", "challenger")  # long, or said already


@dataclass(frozen=True)
class RunResult(Message):
    """What a training run has come to.

    Attributes
    ----------
    generation
        The checkpoint after it; None for a dry run.
    candidate
        Folder of the exported model.
    samples, first_offset, last_offset
        What was new.
    consumed
        Position in label order up to which everything has been learned.
    remembered
        How many samples are kept to be learned from again.
    memory
        Offsets of the samples that must stay in the log.
    averaged
        Whether the long average of the weights was exported.
    skipped
        Steps whose loss was not finite.
    loss_first, loss_last
        Means over the first and the last tenth of the steps.
    written
        Bytes handed to the disk; None where the kernel does not tell.
    """

    run: int
    trigger: str
    generation: int | None
    candidate: Path
    samples: int
    first_offset: int | None
    last_offset: int | None
    consumed: int
    remembered: int
    memory: tuple[int, ...]
    challenger: Challenge | None
    averaged: bool
    bundle: str
    steps: int
    skipped: int
    loss_first: float | None
    loss_last: float | None
    engine: str
    seconds: float
    written: int | None = None

    def record(self) -> dict[str, Any]:
        """Return what `state.db` and the event `training_finished` hold."""
        return {name: value for name, value in self.to_json().items() if name not in NOT_RECORDED}

    def own_candidate(self) -> Candidate:
        """Return the learner's own candidate."""
        return Candidate(
            run=self.run,
            folder=self.candidate,
            bundle=self.bundle,
            generation=self.generation,
            loss_last=self.loss_last,
            samples=self.samples,
            first_offset=self.first_offset,
            last_offset=self.last_offset,
        )

    def candidates(self) -> tuple[Candidate, ...]:
        """Return what goes before the gate, in this order: a challenger that has won, then the own one."""
        own, beside = self.own_candidate(), self.challenger
        if beside is None:
            return (own,)
        won = replace(own, folder=beside.candidate, contest=beside.contest, beside=own.folder)
        return won, own


@dataclass(frozen=True)
class RunEnd(Message):
    """How a run has ended: what those who have asked for it are told.

    `outcome` is `done`, `failed`, `no_data` or `stopped`; with `error` where it is not `done`. Read from the
    record of a run, of which earlier versions may have kept less.
    """

    run: int
    engine: str | None = None
    steps: int | None = None
    samples: int | None = None
    skipped: int | None = None
    seconds: float | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    generation: int | None = None
    outcome: str = "done"
    error: str | None = None

    def answer(self) -> dict[str, Any]:
        """Return what a command that has asked for the run is answered."""
        return {name: value for name, value in self.to_json().items() if name != "error"}

    @classmethod
    def of_record(cls, run: int, outcome: str, record: Mapping[str, Any]) -> RunEnd:
        """Read what the record of a run says of its end."""
        return cls.from_json({**record, "run": run, "outcome": outcome})


@dataclass(frozen=True)
class KeptUpdate(Message):
    """What is kept on the disk with the update of a round: what its line says, and what it has cost.

    Attributes
    ----------
    base
        Fingerprint of the weights to which it is a difference.
    loss, metrics
        On the device's own holdout; None and empty where noise was added to the update.
    noise
        The multiplier that the privacy ledger is charged with.
    consumed
        Position in label order up to which samples were there.
    """

    device: str
    round: int
    id: str
    base: str
    samples: int
    norm: float
    noise: float
    loss: float | None
    metrics: Mapping[str, float]
    consumed: int


@dataclass(frozen=True)
class RoundResult(Message):
    """What a device has given to a round; see `edged.trainer.fleet_training.Contribution`.

    `number` is that of the kept update, `bytes` its size.
    """

    run: int
    number: int
    about: KeptUpdate
    samples: int
    steps: int
    norm: float
    moved: float
    before: Quality | None
    after: Quality | None
    bytes: int
    seconds: float

    def record(self) -> dict[str, Any]:
        """Return what `state.db` holds."""
        return {n: value for n, value in self.to_json().items() if n not in ("run", "number", "about")}


@dataclass(frozen=True)
class FleetModelResult(Message):
    """What a fleet's model is worth on the device's holdout.

    Attributes
    ----------
    share
        Of the fleet's model in the best mixture; None without a holdout.
    before, model, standing, mixed
        Of the own weights, the fleet's model, the one before it, and the best mixture.
    candidate
        The mixture, where it is to be adopted.
    serves
        Whether the mixture is what serves already.
    taken, reason
        What the gate has made of it, and why; set by the daemon.
    """

    run: int
    share: float | None
    samples_judged: int
    before: Quality | None
    model: Quality | None
    standing: Quality | None
    mixed: Quality | None
    candidate: Candidate | None = None
    serves: bool = False
    taken: bool = False
    reason: str = ""


# ---- options ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunOptions(Message):
    """What a run asks for beyond the configuration; None takes the configured value.

    Attributes
    ----------
    epochs
        Passes over the new samples, instead of `steps`.
    engine, base
        What executes the run and which weights it begins with; such a run has a process of its own.
    dry_run
        Leave a candidate and nothing else: the learner does not go on from it.
    challenge
        Begin a fresh learner beside this one.
    """

    steps: int | None = None
    epochs: float | None = None
    learning_rate: float | None = None
    new_share: float | None = None
    engine: str | None = None
    base: Base | None = None
    dry_run: bool = False
    challenge: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return what is asked for, as the record of a run holds it."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    def over(self, usual: RunOptions) -> RunOptions:
        """Return these options, and where they ask for nothing the usual ones."""
        return replace(usual, **self.to_json())

    @property
    def of_process(self) -> bool:
        """Whether they change the whole trainer process."""
        return bool(self.engine or self.base or self.dry_run)
