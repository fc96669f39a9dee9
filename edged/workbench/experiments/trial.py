"""`python -m edged.workbench.experiments.trial`: one training of a recipe.

The order is one JSON object on stdin.

After each epoch it writes `EpochDone` as a JSON line to stdout, at the end `TrialResult`. An error is one
line on stderr, its exit code the program's.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.protocols import LearningRate
from edged.domain.training.batch_pool import LabelForm
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.errors import BundleError, TrainingError
from edged.host.child_process import run_module
from edged.host.vitals import peak_memory
from edged.storage.models.bundles import Bundle
from edged.workbench.experiments.job import (
    MODEL,
    WEIGHTS,
    BundleBuilt,
    EpochDone,
    TrialOrder,
    TrialResult,
    carry_out,
    load_data,
    report,
)
from edged.workbench.experiments.scoring import Judge, better

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

BUILD_SECONDS = 300.0
TRAIN_ROWS = 2000  # of the training part, for its metric


class Trial:
    """One training: a bundle is built, its engine trains, and after each epoch the model is judged.

    EdgedError when the bundle cannot be built or opened here.
    """

    def __init__(self, order: TrialOrder) -> None:
        self._order, self._recipe = order, order.recipe
        self.notes = _build(order)
        self._bundle = Bundle.open(order.bundle, verify=False)
        self._bundle.check_schema(order.schema)
        self._engine = open_engine(order.engine, self._bundle, order.threads)
        self._data = load_data(order.data)
        self._labels = LabelForm(self._bundle.loss, self._bundle.output.width)
        self._judge = Judge.of(order.schema, self._data, self._labels)
        self._progress = _Progress(order.metric)
        self._best_weights: dict[str, NDArray[np.float32]] = {}
        # All the time in steps so far; and of one step in the epoch in which they were the fastest.
        self._stepping, self._step_seconds = 0.0, math.inf
        self._own = [
            name
            for names in (self._bundle.standardise, self._bundle.target_standardise)
            for name in map(str, (names or {}).values())
        ]

    def run(self) -> TrialResult:
        """Train to the end; the result, or TrainingError when losses or weights are no longer finite."""
        began, recipe, train = time.monotonic(), self._recipe, self._data.split.train
        rng = np.random.default_rng(self._order.seed)
        batches = Batches(train, recipe.batch, recipe.epochs, recipe.replay_share, rng)
        total = batches.steps * recipe.epochs if recipe.schedule == "linear" else 0
        self._engine.begin(LearningRate(recipe.learning_rate, recipe.warmup, total))
        for epoch in range(recipe.epochs):
            self._look(epoch, self._epoch(batches, epoch))
            if recipe.patience is not None and self._progress.stale(epoch) >= recipe.patience:
                break
        if recipe.patience is not None:
            self._engine.set_parameters(self._best_weights)
        return self._result(began)

    def _epoch(self, batches: Batches, epoch: int) -> float:
        """Mean loss of the steps of one epoch."""
        before, (x, y) = self._stepping, (self._data.x, self._data.y)
        losses = [self._step(x[i], self._labels.of(y[i]), epoch) for i in batches.epoch(epoch)]
        self._engine.check()
        self._step_seconds = min(self._step_seconds, (self._stepping - before) / len(losses))
        return float(np.mean(losses))

    def _step(self, x: NDArray[np.float32], y: NDArray[Any], epoch: int) -> float:
        began = time.perf_counter()
        loss = self._engine.step(x, y).loss
        self._stepping += time.perf_counter() - began
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is no longer finite in epoch {epoch + 1}", remedy="lower learning_rate"
            )
        return loss

    def _look(self, epoch: int, loss: float) -> None:
        """Judge the model as it is now."""
        model, split = self._model(), self._data.split
        sampled = split.train[:: max(1, len(split.train) // TRAIN_ROWS)]
        point = EpochDone(
            epoch + 1,
            self._recipe.epochs,
            train_loss=loss,
            validation_loss=self._judge.loss(self._engine, split.validation),
            train_metric=self._metric(model, sampled),
            validation_metric=self._metric(model, split.validation),
        )
        if self._progress.add(point) and self._recipe.patience is not None:
            self._best_weights = self._engine.parameters()
        report(point)

    def _metric(self, model: InferenceModel, rows: Rows) -> float:
        return self._judge.figures(model, rows).get(self._order.metric, math.nan)

    def _model(self) -> InferenceModel:
        path = self._order.folder / MODEL
        self._engine.export(path)
        return InferenceModel(path)

    def _result(self, began: float) -> TrialResult:
        model, split, judge = self._model(), self._data.split, self._judge
        weights = {name: v for name, v in self._engine.parameters().items() if name not in self._own}
        np.savez(self._order.folder / WEIGHTS, **weights)  # type: ignore[arg-type]  # takes keywords for flags
        part, rows = ("test", split.test) if len(split.test) else ("validation", split.validation)
        return TrialResult(
            validation=judge.figures(model, split.validation),
            errors=judge.standard_errors(model, split.validation),
            test=judge.figures(model, split.test) if len(split.test) else None,
            curve=tuple(self._progress.curve),
            best_epoch=self._progress.best,
            shown=judge.shown(model, rows, part),
            step_us=1e6 * self._step_seconds,
            peak_bytes=peak_memory(),
            bundle_bytes=sum(entry.bytes for entry in self._bundle.files.values()),
            model_bytes=self._bundle.inference_model.stat().st_size,
            parameters=sum(v.size for name, v in weights.items() if name in self._bundle.trainable),
            engine=self._engine.name,
            notes=self.notes,
            seconds=time.monotonic() - began,
        )


@dataclass
class _Progress:
    """The curve so far, and the number of its best point, counted from 1."""

    metric: str
    curve: list[EpochDone] = field(default_factory=list)
    best: int = 0

    def add(self, point: EpochDone) -> bool:
        """Take in the point of one more epoch; whether it is the best so far."""
        before = self.curve[self.best - 1].validation_metric if self.curve else math.nan
        self.curve.append(point)
        if len(self.curve) == 1 or better(self.metric, point.validation_metric, before):
            self.best = len(self.curve)
        return self.best == len(self.curve)

    def stale(self, epoch: int) -> int:
        """Epochs since the best one, at the end of the epoch of this number."""
        return epoch + 1 - self.best


def _build(order: TrialOrder) -> tuple[str, ...]:
    answer = run_module("edged.workbench.experiments.build_bundle", order, BUILD_SECONDS)
    if answer is None:
        raise BundleError(f"building the bundle took longer than {BUILD_SECONDS:.0f} s")
    if answer.code != 0:
        raise BundleError(answer.problem)
    return BundleBuilt.from_json(json.loads(answer.output)).notes


class Batches:
    """Batches of `size` row numbers, epoch by epoch, from the rows of the training part in order of time.

    An epoch has as many steps as there are whole batches of the rows. Without `replay` they are shuffled anew
    in each. With it an epoch is a stretch of the stream, a share `replay` of each of its batches is drawn
    evenly from the stretches before: what a device does that keeps a replay memory. Raises TrainingError when
    there are more stretches than samples.
    """

    def __init__(
        self, rows: Rows, size: int, epochs: int, replay: float | None, rng: np.random.Generator
    ) -> None:
        if replay is not None and epochs > len(rows):
            raise TrainingError(f"{len(rows)} samples cannot be cut into {epochs} stretches", where="epochs")
        self._rows, self._size, self._rng = rows, min(size, len(rows)), rng
        self._replay = replay
        self._stretches = [rows] * epochs if replay is None else np.array_split(rows, epochs)
        self.steps = len(rows) // self._size

    def epoch(self, number: int) -> Iterator[Rows]:
        """The batches of the epoch of this number, counted from 0."""
        fresh = self._endless(self._stretches[number])
        for _ in range(self.steps):
            old = 0 if self._replay is None or number == 0 else round(self._replay * self._size)
            new = np.array([next(fresh) for _ in range(self._size - old)], np.int64)
            yield np.concatenate([new, self._earlier(number, old)]) if old else new

    def _earlier(self, number: int, count: int) -> Rows:
        before = sum(len(stretch) for stretch in self._stretches[:number])
        return np.asarray(self._rows[self._rng.integers(before, size=count)])

    def _endless(self, rows: Rows) -> Iterator[np.int64]:
        """All of them in random order, again and again."""
        while True:
            yield from self._rng.permutation(rows)


if __name__ == "__main__":
    sys.exit(carry_out(lambda order: Trial(order).run()))
