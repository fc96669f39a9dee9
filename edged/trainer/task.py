"""Task of a learner, the engines for it, and the quality of the weights in an engine."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.config import TrainingConfig
from edged.domain.bundle_contents import MODEL
from edged.domain.federated.messages import Quality
from edged.domain.judging.outputs import answers, errors
from edged.domain.protocols import Engine, Holdout
from edged.domain.stream.sample import Window
from edged.domain.stream.schema import Schema
from edged.domain.training.batch_pool import LabelForm
from edged.domain.training.learner_state import MemoryRules
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.runtime.ort import CPU
from edged.errors import TrainingError
from edged.storage.models.bundles import Bundle

AT_ONCE = 1024  # rows per call of a model
JUDGED_ROWS = 1024


@dataclass(frozen=True)
class LearningTask:
    """The bundle to train, the stream that it learns from, and the section `training`.

    `block` windows of a key share readings: 1 where samples do not overlap.
    """

    training: TrainingConfig
    schema: Schema
    bundle: Bundle
    block: int = 1

    @property
    def labels(self) -> LabelForm:
        """The form in which the bundle's loss takes labels."""
        return LabelForm(self.bundle.label_loss, self.bundle.output.width)

    @property
    def memory(self) -> MemoryRules:
        """Return the rules of what a learner of this task remembers."""
        replay, fixed = self.training.replay, self.training.constants
        return MemoryRules(replay, min(fixed.recent, replay), fixed.half_life, fixed.average)


@dataclass(frozen=True)
class EngineFactory:
    """Opens engines of one kind on a bundle."""

    name: str
    bundle: Bundle
    providers: Sequence[str] = CPU

    def open(self) -> Engine:
        """Open an engine with the bundle's initial weights."""
        return open_engine(self.name, self.bundle, providers=self.providers)


@contextmanager
def in_place(weights: Mapping[str, NDArray[np.float32]] | None, engine: Engine) -> Iterator[None]:
    """Put other weights into the engine for a while; with None, keep its own."""
    own = engine.parameters()
    engine.set_parameters(weights or {})
    try:
        yield
    finally:
        engine.set_parameters(own)


def loss_of(engine: Engine, x: NDArray[np.float32], y: NDArray[Any]) -> float:
    """Return the loss of the present weights; NaN where the graph fails on numbers that are not finite."""
    try:
        return engine.evaluate(x, y)
    except TrainingError:
        return math.nan


def holdout_rows(holdout: Holdout, task: LearningTask) -> Window:
    """Read the newest rows of the holdout that candidates are evaluated on."""
    window = holdout.holdout_window(JUDGED_ROWS)
    return window.take(task.schema.check(window.x, window.y))


def quality(engine: Engine, window: Window, task: LearningTask) -> Quality | None:
    """Return loss and metric: the accuracy of classes, or the negative mean absolute error of values.

    More is better in both tasks. None without rows, and where the weights give no finite loss.
    """
    if len(window) == 0:
        return None
    loss = loss_of(engine, window.x, task.labels.of(window.y))
    if not math.isfinite(loss):
        return None
    with tempfile.TemporaryDirectory(prefix="edged-quality-") as folder:
        path = Path(folder) / MODEL
        engine.export(path)
        model = InferenceModel(path)
        parts = range(0, len(window), AT_ONCE)
        raw = np.concatenate([model.predict(window.x[i : i + AT_ONCE]) for i in parts])
    wrong = float(errors(task.schema, answers(task.schema, raw), window.y).mean())
    if not math.isfinite(wrong):
        return None
    return Quality(float(loss), 1.0 - wrong if task.schema.task == "classify" else -wrong)
