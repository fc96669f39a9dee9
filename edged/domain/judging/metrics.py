"""Quality of a whole stream of answers, in the field's usual figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.arrays import Doubles, Flags
from edged.domain.json_fields import JsonObject
from edged.domain.stream.schema import Schema
from edged.domain.training.message import Message


@dataclass(frozen=True)
class QualityFigures(Message):
    """Quality on the newest labelled predictions: accuracy of classes, mean error of values.

    `repeated` is the same of repeating the last value that was known; None without a label before.
    `coverage` is the share of sets that contained the label; `sets` says whether sets are promised.
    """

    mean: float | None
    labelled: int
    repeated: float | None
    of_classes: bool
    coverage: float | None = None
    sets: bool = False

    @property
    def name(self) -> str:
        """Name of `mean`: `accuracy` or `error`."""
        return "accuracy" if self.of_classes else "error"

    def to_json(self) -> JsonObject:
        """Return the fields of metrics, `mean` by its name."""
        covered = {"coverage": self.coverage} if self.sets else {}
        return {self.name: self.mean, "labelled": self.labelled, "repeated": self.repeated, **covered}

    @classmethod
    def from_json(cls, values: object) -> QualityFigures:
        """Read what `to_json` gives."""
        given = values if isinstance(values, dict) else {}
        of_classes = "accuracy" in given
        kind = {"of_classes": of_classes, "mean": given.get("accuracy" if of_classes else "error")}
        return super().from_json({"repeated": None, **given, **kind, "sets": "coverage" in given})


def classification(y: Doubles, predicted: Doubles, classes: int) -> dict[str, float]:
    """Accuracy, balanced accuracy (mean recall) and Cohen's kappa of class indices `(n,)`.

    >>> classification(np.array([0., 1., 1.]), np.array([0., 1., 0.]), 2)["accuracy"]
    0.6666666666666666
    """
    if len(y) == 0:
        return {"accuracy": float("nan"), "balanced_accuracy": float("nan"), "kappa": float("nan")}
    cells = y.astype(np.int64) * classes + predicted.astype(np.int64)
    confusion = np.bincount(cells, minlength=classes * classes).reshape(classes, classes)
    n = confusion.sum()
    observed = np.trace(confusion) / n
    expected = float(confusion.sum(axis=0) @ confusion.sum(axis=1)) / n**2
    seen = confusion.sum(axis=1)
    recall = np.diag(confusion)[seen > 0] / seen[seen > 0]
    kappa = (observed - expected) / (1 - expected) if expected < 1 else 0.0
    return {
        "accuracy": float(observed),
        "balanced_accuracy": float(recall.mean()),
        "kappa": float(kappa),
    }


def calibration_error(confidence: Doubles, right: Flags, bins: int = 15) -> float:
    """Expected calibration error: mean distance of confidence `(n,)` from the share that is right, by bins.

    >>> calibration_error(np.array([0.75, 0.75]), np.array([True, False]))
    0.25
    """
    place = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    gaps = np.bincount(place, confidence, bins) - np.bincount(place, right, bins)
    return float(np.abs(gaps).sum() / max(1, len(confidence)))


def regression(y: Doubles, predicted: Doubles) -> dict[str, float]:
    """Mean absolute error, root mean squared error and R2 of values `(n,)` or `(n, k)`."""
    if len(y) == 0:
        return {"mae": float("nan"), "rmse": float("nan"), "r2": float("nan")}
    residual = predicted - y
    spread = float(((y - y.mean(axis=0)) ** 2).sum())
    return {
        "mae": float(np.abs(residual).mean()),
        "rmse": float(np.sqrt((residual**2).mean())),
        "r2": 1.0 - float((residual**2).sum()) / spread if spread > 0 else 0.0,
    }


def detection(y: Doubles, score: Doubles, alarm: NDArray[Any]) -> dict[str, float]:
    """Area under the ROC curve of `score` `(n,)` and F1 of `alarm` `(n,)` against anomalies `y != 0`."""
    positive = y != 0
    hits = float((positive & (alarm != 0)).sum())
    f1 = 2 * hits / (float(positive.sum()) + float((alarm != 0).sum())) if hits else 0.0
    return {"auroc": float(placements(y, score).mean()), "f1": f1}


def placements(y: Doubles, score: Doubles) -> Doubles:
    """A value of each row `(n,)`, whose mean is the area under the ROC curve of `score` against `y != 0`.

    The share of rows of the other kind on the right side of a score, ties counted half, centred and weighted
    by how rare its own kind is; NaN where all rows are of one kind.

    >>> float(placements(np.array([0.0, 0, 1, 1]), np.array([0.1, 0.4, 0.4, 0.9])).mean())
    0.875
    """
    positive = y != 0
    share = positive.mean() if len(y) else 0.0
    if not 0 < share < 1:
        return np.full(len(y), np.nan)
    found = np.empty(len(y))
    for own, sign, weight in ((positive, 1, share), (~positive, -1, 1 - share)):
        others, values = np.sort(sign * score[~own]), sign * score[own]
        below = np.searchsorted(others, values, "left") + np.searchsorted(others, values, "right")
        placed = below / (2 * len(others))
        found[own] = placed.mean() + (placed - placed.mean()) / weight
    return found


def score(schema: Schema, y: Doubles, predicted: Doubles) -> dict[str, float]:
    """The metric of the stream's task for targets and answers `(n, w)`."""
    if schema.task == "classify":
        return classification(y[:, 0], predicted[:, 0], len(schema.classes))
    return regression(y, predicted)
