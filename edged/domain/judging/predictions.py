"""Predictions waiting for their labels, and the live quality that comes of both."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.judging.outputs import errors
from edged.domain.judging.prediction_sets import Promise
from edged.domain.stream.schema import Schema


@dataclass(frozen=True)
class Predictions:
    """Answers of a model to a batch of `n` samples.

    `answers` `(n, w)` float32 is what labels are compared with; `output` `(n, k)` float32 is what
    is published (probabilities, values, or anomaly scores); `confidence` `(n,)` or None. `experts`
    `(n, e, k)` is what each expert of the model said, None where it has none; of a forecast the last value
    and the model's own answer. `missing` says what is needed before answers say anything, such as
    `7 of 20 labels`; None once they do. `promise` are the sets that contain the truth in a share of the
    samples, None without `serving.coverage`; rows with a confidence below `least` have no label.
    """

    version: int
    offsets: NDArray[np.int64]
    answers: NDArray[np.float32]
    output: NDArray[np.float32]
    confidence: NDArray[np.float32] | None
    experts: NDArray[np.float32] | None = None
    missing: str | None = None
    promise: Promise | None = None
    least: float = 0.0

    @property
    def undecided(self) -> NDArray[np.bool_]:
        """Rows `(n,)` without a label: their set is not a single class, or they are too uncertain."""
        found = np.zeros(len(self.offsets), bool) if self.promise is None else self.promise.undecided
        return found if self.confidence is None or not self.least else found | (self.confidence < self.least)


@dataclass(frozen=True)
class LabelledPromise:
    """Promises of `m` samples, their answers `(m, w)` and the labels `(m, w)` that have arrived."""

    promise: Promise
    answers: NDArray[np.float32]
    y: NDArray[np.float32]


@dataclass(frozen=True)
class Joined:
    """Errors `(n,)` of predictions whose labels have come, and the offsets of their samples.

    During probation `shadow` has the predecessor's errors on those samples that both answered,
    and `beside` the champion's on the same. `repeated` `(n,)` are the errors of repeating the last value that
    was known at each prediction, NaN where there was none. `experts` `(m, e, k)` and `labels`, classes `(m,)`
    or values `(m, k)`, are those of the `m` samples that a model with experts answered; None and empty
    without one. `promised` has what was promised.
    """

    offsets: NDArray[np.int64]
    versions: NDArray[np.int64]
    errors: NDArray[np.float64]
    beside: NDArray[np.float64]
    shadow: NDArray[np.float64]
    repeated: NDArray[np.float64]
    experts: NDArray[np.float32] | None
    labels: NDArray[Any]
    promised: LabelledPromise | None = None


class RecentAnswers:
    """The newest `size` answers by offset, in fixed memory."""

    def __init__(self, size: int, schema: Schema) -> None:
        width = 1 if schema.task == "classify" else schema.targets
        self._schema = schema
        self._size = size
        # Offsets are kept plus 1, as those of none are 0.
        self._offsets = np.zeros(size, np.int64)
        self._versions = np.zeros(size, np.int64)
        self._answers, self._shadows, self._repeated = np.zeros((3, size, width), np.float32)
        self._shadow_of = np.zeros(size, np.int64)
        self._experts: NDArray[np.float32] | None = None
        self._experts_of = np.zeros(size, np.int64)
        self._promise: Promise | None = None

    def remember(self, made: Predictions, repeated: NDArray[np.float32] | float = np.nan) -> None:
        """Keep the answers of a batch, and the last values known then: `(n, w)`, `(w,)`, NaN for none."""
        place = made.offsets % self._size
        self._offsets[place] = made.offsets + 1
        self._versions[place] = made.version
        self._answers[place] = made.answers
        self._repeated[place] = repeated
        self._shadow_of[place] = 0
        if made.experts is not None:
            shape = (self._size, *made.experts.shape[1:])
            if self._experts is None or self._experts.shape != shape:
                self._experts = np.zeros(shape, np.float32)
                self._experts_of.fill(0)
            self._experts[place] = made.experts
            self._experts_of[place] = made.offsets + 1
        if made.promise is not None:
            self._remember_promise(place, made.promise)

    def _remember_promise(self, place: NDArray[np.int64], made: Promise) -> None:
        kept = self._promise
        if kept is None or kept.sets.shape[1:] != made.sets.shape[1:]:
            sets = np.zeros((self._size, *made.sets.shape[1:]), made.sets.dtype)
            expected = np.full((self._size, made.expected.shape[1]), np.nan, np.float32)
            self._promise = kept = replace(made, sets=sets, expected=expected)
        kept.sets[place], kept.expected[place] = made.sets, made.expected

    def forget(self, offsets: NDArray[np.int64]) -> None:
        """Forget the answers of these samples."""
        place = offsets % self._size
        self._offsets[place[self._offsets[place] == offsets + 1]] = 0

    def remember_shadow(self, offsets: NDArray[np.int64], answers: NDArray[np.float32]) -> None:
        """Keep what the predecessor would have answered."""
        place = offsets % self._size
        self._shadows[place] = answers
        self._shadow_of[place] = offsets + 1

    def join(
        self,
        offsets: NDArray[np.int64],
        y: NDArray[np.float32],
        scale: NDArray[np.float32] | None = None,
        *,
        watched: int | None = None,
    ) -> Joined:
        """Errors of those samples whose answers are still here; each is joined once.

        With `watched` only answers of that version are set beside their predecessor's: others
        belong to an earlier pair of models.
        """
        place = offsets % self._size
        known = (self._offsets[place] == offsets + 1) & np.isfinite(self._answers[place]).all(axis=1)
        place, y, offsets = place[known], y[known], offsets[known]
        wrong = errors(self._schema, self._answers[place], y, scale)
        both = (self._shadow_of[place] == offsets + 1) & np.isfinite(self._shadows[place]).all(axis=1)
        if watched is not None:
            both &= self._versions[place] == watched
        shadow = errors(self._schema, self._shadows[place][both], y[both], scale)
        known_then = self._repeated[place]
        repeated = errors(self._schema, known_then, y, scale) + 0 * known_then.sum(axis=1)
        self._offsets[place] = 0
        said = self._experts_of[place] == offsets + 1
        experts = None if self._experts is None else self._experts[place[said]]
        labels = y[said] if experts is not None else y[:0]
        labels = labels[:, 0].astype(np.int64) if self._schema.task == "classify" else labels
        versions = self._versions[place].astype(np.int64)
        kept = self._promise
        promised = None if kept is None else LabelledPromise(kept.rows(place), self._answers[place], y)
        return Joined(offsets, versions, wrong, wrong[both], shadow, repeated, experts, labels, promised)


class LiveQuality:
    """Mean error over the newest `window` labelled predictions.

    >>> quality = LiveQuality(2)
    >>> quality.add(np.array([1.0, 0.0, 0.0])); quality.mean
    0.0
    """

    def __init__(self, window: int = 1000) -> None:
        self._ring = np.zeros(window, np.float64)
        self.count = 0

    def add(self, wrong: NDArray[np.float64]) -> None:
        """Take in errors `(n,)`, oldest first."""
        newest = wrong[-len(self._ring) :]
        start = self.count + len(wrong) - len(newest)
        self._ring[(start + np.arange(len(newest))) % len(self._ring)] = newest
        self.count += len(wrong)

    @property
    def mean(self) -> float | None:
        """Mean error, None before the first label."""
        held = min(self.count, len(self._ring))
        return float(self._ring[:held].mean()) if held else None

    def clear(self) -> None:
        """Forget everything: a new model begins."""
        self.count = 0


@dataclass
class QualityDrop:
    """Detects that the newest `recent` errors are larger than the `before` ones before them, beyond chance.

    Sooner than a drift detector, and less sure.
    Welch's statistic of the two means. It is asked once for each `recent` / 2 errors, and after a fall not
    before half of `before` errors have passed, so that one fall is told once.

    >>> fall = QualityDrop(); fall.add(np.zeros(500)), fall.add(np.ones(30))
    (False, True)
    """

    recent: int = 60
    before: int = 500
    z: float = 5.0
    _errors: deque[float] = field(default_factory=deque, repr=False)
    _since: int = 0

    def add(self, errors: NDArray[np.float64]) -> bool:
        """Take in errors `(n,)`, oldest first; True where quality has fallen."""
        fallen = False
        for start in range(0, len(errors), self.recent // 2):
            part = errors[start : start + self.recent // 2]
            self._errors.extend(part[np.isfinite(part)].tolist())
            while len(self._errors) > self.recent + self.before:
                self._errors.popleft()
            self._since += len(part)
            if self._since >= self.recent // 2 and self._fallen():
                self._errors.clear()
                fallen = True
            self._since %= self.recent // 2
        return fallen

    def _fallen(self) -> bool:
        if len(self._errors) < self.recent + self.before // 2:
            return False
        values = np.array(self._errors)
        old, new = values[: -self.recent], values[-self.recent :]
        # One error more on either side: a stream without any would make every error a certainty.
        spread = (float(old.var()) + 1 / len(old)) / len(old) + (float(new.var()) + 1 / len(new)) / len(new)
        return float(new.mean() - old.mean()) > self.z * sqrt(spread)
