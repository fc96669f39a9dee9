"""What a replay collects row by row: anomalies that were found, and what prediction sets promised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edged.domain.judging import metrics
from edged.domain.judging.predictions import Predictions
from edged.domain.stream.anomaly import Anomalies, AnomalyRules, AnomalyVerdicts
from edged.workbench.evaluation.figures import DetectionFigures, PromiseFigures, RecordedAlarm
from edged.workbench.evaluation.stream import Stream


class Detections:
    """Collects what `anomalies` finds of the rows of a stream, block by block."""

    def __init__(self, anomalies: Anomalies | None, stream: Stream) -> None:
        self._anomalies = anomalies
        self._stream = stream
        self._blocks: list[NDArray[np.int64]] = []
        self._threshold = np.nan
        # `(n,)`, the threshold each row was judged by, NaN where there was none; unusual or within an alarm.
        self.thresholds = np.full(len(stream), np.nan)
        self.flagged = np.zeros(len(stream), bool)
        self.alarms: list[RecordedAlarm] = []

    def add(self, index: NDArray[np.int64], judged: AnomalyVerdicts) -> None:
        """What was found of these rows, just now; their offsets are one more than their places."""
        self._blocks.append(index)
        self.thresholds[index] = self._threshold
        self.flagged[index] = judged.flagged
        threshold = None if self._anomalies is None else self._anomalies.threshold
        self._threshold = np.nan if threshold is None else threshold
        for change in judged.changes:
            if change.until is None:
                row, first = change.offset - 1, change.first - 1
                self.alarms.append(RecordedAlarm(change.key, row, first, None, change.peak))
            else:
                at = next(i for i, a in enumerate(self.alarms) if a.key == change.key and a.end is None)
                self.alarms[at] = replace(
                    self.alarms[at], end=change.offset - 1, peak=change.peak, accepted=change.accepted
                )

    def of_scores(self, rules: AnomalyRules, scores: NDArray[np.float32]) -> Detections:
        """The same rules on other scores `(n,)` of the same rows, in the same blocks."""
        anomalies, stream = Anomalies(rules), self._stream
        other = Detections(anomalies, stream)
        for index in self._blocks:
            keys = [stream.keys[i] for i in index]
            other.add(index, anomalies.detect(keys, index + 1, stream.t[index], scores[index]))
        other.finish(scores)
        return other

    def finish(self, scores: NDArray[np.float32]) -> None:
        """The stream is over: see how high the score rose in alarms that still stand."""
        relative = self.relative(scores)
        for at, alarm in enumerate(self.alarms):
            if alarm.end is None:
                own = [i for i in range(alarm.first, len(scores)) if self._stream.keys[i] == alarm.key]
                self.alarms[at] = replace(alarm, peak=float(relative[own].max()))

    def relative(self, scores: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scores `(n,)` in multiples of the threshold of their time, before there was one of the first."""
        known = self.thresholds[np.isfinite(self.thresholds)]
        first = known[0] if len(known) else 1.0
        limit = np.where(np.isfinite(self.thresholds), self.thresholds, first)
        return np.asarray(scores / np.maximum(limit, 1e-12), np.float64)

    def figures(self, rows: NDArray[np.int64], scores: NDArray[np.float32]) -> dict[str, float]:
        """Area under the ROC curve and F1 against the recorded truth; without one the mean score."""
        if self._stream.truth is None:
            return {"mean_score": float(scores[rows].mean())}
        return metrics.detection(self._stream.truth[rows], self.relative(scores)[rows], self.flagged[rows])

    def summary(self) -> DetectionFigures:
        """Return the alarms, how many rows were set aside, and the threshold at the end."""
        last = self.thresholds[-1]
        threshold = None if np.isnan(last) else float(last)
        return DetectionFigures(tuple(self.alarms), int(self.flagged.sum()), threshold)


class PromiseMeter:
    """Collects confidence and sets of predictions by row of a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.promised: float | None = None
        self.confidence = np.full(len(stream), np.nan)
        # By row and target: whether the set contained the truth, and how many classes, or how wide it was.
        self._covered = np.full((len(stream), stream.y.shape[1]), np.nan)
        self._size = np.full((len(stream), stream.y.shape[1]), np.nan)

    def add(self, index: NDArray[np.int64], made: Predictions) -> None:
        """Record the predictions of these rows."""
        if made.confidence is not None:
            self.confidence[index] = made.confidence
        promise = made.promise
        if promise is None:
            return
        self.promised = promise.coverage
        known = promise.made & self._stream.known[index]
        index, promise = index[known], promise.rows(known)
        self._covered[index] = promise.covers(self._stream.y[index])
        sets = promise.sets
        size = sets.sum(axis=1, keepdims=True) if promise.of_classes else sets[:, :, 1] - sets[:, :, 0]
        self._size[index] = size

    def figures(self, rows: NDArray[np.int64]) -> PromiseFigures | None:
        """What came of it on these rows; None where nothing was promised."""
        rows = rows[np.isfinite(self._covered[rows]).all(axis=1)]
        if self.promised is None or len(rows) == 0:
            return None
        covered, size = self._covered[rows], self._size[rows].mean(axis=0)
        return PromiseFigures(
            promised=self.promised,
            covered=float(covered.mean()),
            size=tuple(size.tolist()) if len(size) > 1 else float(size[0]),
            empty=float((self._size[rows] == 0).mean()),
        )
