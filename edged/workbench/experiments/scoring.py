"""What a trained model is worth on a part of the data: figures, and what a person looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.judging.metrics import detection, score
from edged.domain.judging.outputs import answers, errors, unit_scale
from edged.workbench.experiments.job import Shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.protocols import Engine, Model
    from edged.domain.stream.schema import Schema
    from edged.domain.training.batch_pool import LabelForm
    from edged.workbench.experiments.job import Data

ROWS = 1024  # predicted together
BINS = 40
BLOCKS = 20  # stretches of the validation part that are left out in turns
TAILS = (0.5, 99.5)  # percentiles beyond which a residual counts in the outermost bin
LOWER_IS_BETTER = frozenset({"mae", "rmse", "loss"})


def better(metric: str, one: float, other: float) -> bool:
    """Whether one value of a metric is better than another; a value that is no number never is."""
    if np.isnan(other):
        return not np.isnan(one)
    return one < other if metric in LOWER_IS_BETTER else one > other


@dataclass(frozen=True)
class Judge:
    """Judges models on rows of `data`, whose targets `(n, targets)` the loss takes in the form `labels`.

    A reconstruction is judged in standard deviations of the training part, so that no channel counts for
    more because of its unit.
    """

    schema: Schema
    data: Data
    labels: LabelForm
    scale: NDArray[np.float32] | None

    @classmethod
    def of(cls, schema: Schema, data: Data, labels: LabelForm) -> Judge:
        """Build the judge of a stream."""
        scale = unit_scale(np.asarray(data.y[data.split.train])) if schema.labels_itself else None
        return cls(schema, data, labels, scale)

    def figures(self, model: Model, rows: NDArray[np.int64]) -> dict[str, float]:
        """The task's metrics on these rows."""
        return self._figures(*self._both(model, rows), rows)

    def standard_errors(self, model: Model, rows: NDArray[np.int64]) -> dict[str, float]:
        """Return how far the same model's metrics would vary with other rows of the same stream.

        A jackknife over `BLOCKS` stretches of the rows, as neighbours are alike (Künsch 1989); NaN where a
        metric needs all of them.
        """
        y, answer = self._both(model, rows)
        blocks = np.array_split(np.arange(len(rows)), min(BLOCKS, len(rows)))
        found = []
        for block in blocks:
            kept = np.setdiff1d(np.arange(len(rows)), block)
            found.append(self._figures(y[kept], answer[kept], rows[kept]))
        spread = np.sqrt(len(blocks) - 1)
        return {name: float(spread * np.std([one.get(name, np.nan) for one in found])) for name in found[0]}

    def _figures(
        self, y: NDArray[np.float32], answer: NDArray[np.float32], rows: NDArray[np.int64]
    ) -> dict[str, float]:
        if self.scale is None:
            return score(self.schema, y.astype(np.float64), answer.astype(np.float64))
        found = score(self.schema, y.astype(np.float64) * self.scale, answer.astype(np.float64) * self.scale)
        if self.data.truth is not None:
            wrong, truth = errors(self.schema, answer, y, self.scale), self.data.truth[rows]
            known = np.isfinite(truth)
            found["auroc"] = detection(truth[known], wrong[known], np.zeros(int(known.sum())))["auroc"]
        return found

    def loss(self, engine: Engine, rows: NDArray[np.int64]) -> float:
        """Mean loss of these rows, without an update."""
        total = 0.0
        for part in _parts(rows):
            y = self.labels.of(self.data.y[part])
            total += engine.evaluate(self.data.x[part], y) * len(part)
        return total / len(rows)

    def shown(self, model: Model, rows: NDArray[np.int64], part: str) -> Shown:
        """What a person looks at of these rows, which are the `part` of the data."""
        y, answer = self._both(model, rows)
        if self.schema.task == "classify":
            classes = len(self.schema.classes)
            cells = y[:, 0].astype(np.int64) * classes + answer[:, 0].astype(np.int64)
            flat = np.bincount(cells, minlength=classes * classes)
            confusion = tuple(tuple(line.tolist()) for line in flat.reshape(classes, classes))
            return Shown(part, len(rows), classes=tuple(self.schema.classes), confusion=confusion)
        residuals = answer.astype(np.float64) - y
        scale = unit_scale(np.asarray(self.data.y[self.data.split.train])) if y.shape[1] > 1 else None
        if scale is not None:
            residuals = residuals * scale
        edges, counts = _histogram(residuals.ravel())
        unit = "target" if scale is None else "standard deviations"
        return Shown(part, len(rows), unit=unit, edges=tuple(edges.tolist()), counts=tuple(counts.tolist()))

    def _both(self, model: Model, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        raw = np.concatenate([model.predict(np.asarray(self.data.x[part])) for part in _parts(rows)])
        return np.asarray(self.data.y[rows]), answers(self.schema, raw)


def _parts(rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return [rows[i : i + ROWS] for i in range(0, len(rows), ROWS)]


def _histogram(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Edges and counts."""
    values = values[np.isfinite(values)]
    low, high = (float(v) for v in np.percentile(values, TAILS)) if len(values) else (0.0, 1.0)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(np.clip(values, low, high), BINS, (low, high))
    return edges, counts
