"""A learner in this process with real parts, and streams that can be learned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edged.domain.stream.sample import Batch, LabelUpdate
from edged.domain.stream.schema import Schema
from edged.domain.training.trainer_messages import RunRequest
from edged.domain.training.training_run import RunOptions
from edged.engines.portable.engine import PortableEngine
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.samples.log import SampleLog
from edged.trainer.fleet_rounds import RoundTrainer
from edged.trainer.foreign_weights import WeightImporter
from edged.trainer.learner import Learner
from edged.trainer.local_models import CandidateExporter, LocalModels
from edged.trainer.run import TrainingRun
from edged.trainer.steps import BatchSampler
from edged.trainer.task import EngineFactory, LearningTask
from tests.constants import section

if TYPE_CHECKING:
    from edged.config import TrainingConfig
    from edged.domain.protocols import Engine, StepResult
    from edged.domain.stream.sample import LabelValue
    from edged.domain.training.message import Message
    from edged.domain.training.training_run import Base, RunResult
    from edged.storage.models.bundles import Bundle

Floats = NDArray[np.float32]
M = TypeVar("M", bound="Message")

LIMIT = 1024**2
CLASSIFY = Schema((), 5, "classify", ("low", "mid", "high"))


def task(n: int, seed: int = 0, shift: float = 0.0) -> tuple[Floats, list[LabelValue | None]]:
    """Inputs `(n, 5)` around `shift`; the class is where a weighted sum lies."""
    x = np.random.default_rng(seed).standard_normal((n, 5)).astype(np.float32)
    classes = np.digitize(x @ np.array([1, -1, 0.5, 0, 0]), [-0.5, 0.5])
    return (x + np.float32(shift)).astype(np.float32), [float(c) for c in classes]


def batch(log: SampleLog, x: Floats, labels: list[LabelValue | None]) -> Batch:
    """The next samples of a log."""
    first, n = log.next_offset(), len(x)
    offsets = np.arange(first, first + n, dtype=np.int64)
    times = np.asarray(1.7e9 + offsets, np.float64)
    return Batch(offsets, ["m"] * n, times, times, x, labels, [None] * n)


def rows(x: Floats) -> set[bytes]:
    """Each row as its bytes: random rows are told apart by them."""
    return {row.tobytes() for row in x}


class RecordingEngine(PortableEngine):
    """The usual engine, keeping every row that it was given to train on."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.seen: list[Floats] = []

    def step(self, x: Floats, y: Any, **more: Any) -> StepResult:
        self.seen.append(x.copy())
        return super().step(x, y, **more)

    def trained_on(self) -> set[bytes]:
        """The distinct rows so far; then forgets them."""
        seen, self.seen = self.seen, []
        return rows(np.concatenate(seen))


class Control:
    """Keeps what a run reports; stops it and wants checkpoints when a test does."""

    def __init__(
        self, reports: list[Message], stopping: Callable[[], bool], wanted: Callable[[], bool]
    ) -> None:
        self._reports, self._stopping, self._wanted = reports, stopping, wanted

    @property
    def stopping(self) -> bool:
        """Whether the test wants the run to stop."""
        return self._stopping()

    def throttle(self, seconds: float) -> None:
        """Go on at once."""

    def checkpoint_requested(self) -> bool:
        """Whether the test wants a checkpoint."""
        return self._wanted()

    def report(self, message: Message) -> None:
        """Keep the report."""
        self._reports.append(message)


def unhurried() -> Control:
    """A control that never stops a run."""
    return Control([], lambda: False, lambda: False)


class ChosenChampion(LocalModels):
    """The models of a workshop, whose champion a test may choose."""

    def __init__(self, shop: Workshop) -> None:
        super().__init__(shop.folder, shop.bundle)
        self._shop = shop

    def champion(self) -> Path | None:
        """The folder that was chosen, or the registry's champion."""
        return self._shop.champion or super().champion()


class Workshop:
    """One state directory with a sample log, and trainees on it, one after the other."""

    def __init__(self, folder: Path, bundle: Bundle, schema: Schema = CLASSIFY, **training: Any) -> None:
        self.folder, self.bundle, self.schema = folder, bundle, schema
        settings = {"learning_rate": 0.01, "batch": 32, "steps": 60, "max_steps": 60, **training}
        self.config: TrainingConfig = section("training", settings)
        folder.mkdir(exist_ok=True)
        self.log = SampleLog.open(folder / "samples.db", schema, holdout=0.1)
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.reports: list[Message] = []
        self.champion: Path | None = None
        self._runs = 0

    def feed(self, x: Floats, labels: list[LabelValue | None] | None = None) -> NDArray[np.int64]:
        """Store samples; their offsets."""
        samples = batch(self.log, x, labels or [None] * len(x))
        self.log.commit(samples)
        return samples.offsets

    def label(self, offsets: NDArray[np.int64], labels: list[LabelValue | None]) -> None:
        """Labels that come late."""
        updates = [
            LabelUpdate(offset, label, 0.0)
            for offset, label in zip(offsets.tolist(), labels, strict=True)
            if label is not None
        ]
        self.log.commit(None, updates)

    @property
    def task(self) -> LearningTask:
        """What trainees learn."""
        return LearningTask(self.config, self.schema, self.bundle)

    def trainee(
        self,
        engine: Engine | None = None,
        *,
        stopping: Callable[[], bool] = lambda: False,
        wanted: Callable[[], bool] = lambda: False,
        with_weights: bool = False,
        base: Base = "checkpoint",
    ) -> TrainingRun:
        """A learner that takes up what the checkpoints hold."""
        engine = engine or PortableEngine(self.bundle)
        task, control, models = self.task, Control(self.reports, stopping, wanted), ChosenChampion(self)
        exporter = CandidateExporter(self.folder / "candidates", with_weights=with_weights)
        self.importer = WeightImporter(task, engine, self.log, models, exporter)
        self.sampler = BatchSampler(task, self.log, control)
        self.learner = Learner(task, engine, self.checkpoints, models, control)
        self.learner.restore(base)
        return TrainingRun(task, self.learner, self.log, self.sampler, exporter, control)

    def round_trainer(self, engines: EngineFactory) -> RoundTrainer:
        """What trains in rounds on the samples of the newest trainee."""
        return RoundTrainer(self.task, engines, self.learner, self.sampler, self.importer, unhurried())

    def request(self, trigger: str = "labels", **options: Any) -> RunRequest:
        """The next run."""
        self._runs += 1
        return RunRequest(self._runs, trigger, RunOptions(**options))

    def reported(self, kind: type[M]) -> list[M]:
        """What was reported of one kind."""
        return [message for message in self.reports if isinstance(message, kind)]


def after(looks: int) -> Callable[[], bool]:
    """A wish to stop, seen at this look: there is one after each step, and one between groups of them."""
    left = iter(range(looks - 1))
    return lambda: next(left, None) is None


def weights(engine: Engine) -> dict[str, bytes]:
    """All parameters, bit by bit."""
    return {name: value.tobytes() for name, value in engine.parameters().items()}


def losses(result: RunResult) -> tuple[float, float]:
    """The losses at the begin of a run and at its end."""
    assert result.loss_first is not None
    assert result.loss_last is not None
    return result.loss_first, result.loss_last


def model_bytes(result: RunResult) -> bytes:
    """The model that a run handed to the gate."""
    return (result.candidate / "model.onnx").read_bytes()
