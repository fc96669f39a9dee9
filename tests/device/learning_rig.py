"""A learner in this process with real parts, and streams that can be learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edged.config import TrainingConfig
from edged.domain.stream.sample import Batch, LabelUpdate
from edged.domain.stream.schema import Schema
from edged.domain.training.trainer_messages import RunRequest
from edged.domain.training.training_run import RunOptions
from edged.engines.inference import InferenceModel
from edged.engines.native.engine import NativeEngine
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.samples.log import SampleLog
from edged.trainer import TrainingRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edged.domain.protocols import Engine, StepResult
    from edged.domain.stream.sample import LabelValue
    from edged.domain.training.message import Message
    from edged.domain.training.training_run import Base, RunResult
    from edged.storage.models.bundles import Bundle

Floats = NDArray[np.float32]
M = TypeVar("M", bound="Message")

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


class RecordingEngine(NativeEngine):
    """The native engine, keeping every row that it was given to train on."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.seen: list[Floats] = []

    def step(self, x: Floats, y: Any, *, apply: bool = True, careful: bool = False) -> StepResult:
        self.seen.append(x.copy())
        return super().step(x, y, apply=apply, careful=careful)

    def trained_on(self) -> set[bytes]:
        """The distinct rows so far; then forgets them."""
        seen, self.seen = self.seen, []
        return rows(np.concatenate(seen))


class Workshop:
    """One state directory with a sample log, and trainees on it, one after the other."""

    def __init__(self, folder: Path, bundle: Bundle, schema: Schema = CLASSIFY, **training: Any) -> None:
        self.folder, self.bundle, self.schema = folder, bundle, schema
        settings = {"learning_rate": 0.01, "batch": 32, "steps": 60, "max_steps": 60, **training}
        self.config = TrainingConfig(**settings)
        folder.mkdir(exist_ok=True)
        self.log = SampleLog.open(folder / "samples.db", schema, holdout=0.1)
        self.checkpoints = Checkpoints(folder / "checkpoints", self.config.keep_checkpoints)
        self.reports: list[Message] = []
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

    def trainee(
        self,
        engine: Engine | None = None,
        *,
        stopping: Callable[[], bool] = lambda: False,
        pack_weights: Callable[[Any], bytes] | None = None,
        champion: Callable[[], Path | None] = lambda: None,
        elsewhere: Callable[[int], tuple[int, dict[str, Floats]] | None] = lambda _: None,
        fresh: Callable[[], Engine] | None = None,
        wanted: Callable[[], bool] = lambda: False,
        base: Base = "checkpoint",
    ) -> TrainingRun:
        """A learner that takes up what the checkpoints hold."""
        return TrainingRun(
            config=self.config,
            schema=self.schema,
            bundle=self.bundle,
            engine=engine or NativeEngine(self.bundle),
            samples=self.log,
            checkpoints=self.checkpoints,
            candidates=self.folder / "candidates",
            load_model=InferenceModel,
            pack_weights=pack_weights,
            report=self.reports.append,
            stopping=stopping,
            champion=champion,
            elsewhere=elsewhere,
            fresh=fresh,
            wanted=wanted,
            base=base,
        )

    def request(self, trigger: str = "labels", **options: Any) -> RunRequest:
        """The next run."""
        self._runs += 1
        return RunRequest(self._runs, trigger, RunOptions(**options))

    def reported(self, kind: type[M]) -> list[M]:
        """What was reported of one kind."""
        return [message for message in self.reports if isinstance(message, kind)]


def after(steps: int) -> Callable[[], bool]:
    """A wish to stop that comes after so many steps."""
    left = iter(range(steps - 1))
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
