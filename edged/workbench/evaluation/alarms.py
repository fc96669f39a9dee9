"""What a detector found in a replay: thresholds, unusual samples, alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.judging import metrics
from edged.domain.stream.anomaly import Anomalies

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.stream.anomaly import AnomalyRules, AnomalyVerdicts
    from edged.workbench.recordings.stream import Stream


class Detections:
    """Collects what `anomalies` finds of the rows of a stream, block by block.

    Attributes
    ----------
    thresholds
        `(n,)`, the one each row was judged by; NaN where there was none.
    flagged
        `(n,)` bool, unusual or within an alarm.
    alarms
        `row` at which it was raised, `first` unusual row, `end` row (None while it stands), `key`, `peak`.
    """

    def __init__(self, anomalies: Anomalies | None, stream: Stream) -> None:
        self._anomalies = anomalies
        self._stream = stream
        self._blocks: list[NDArray[np.int64]] = []
        self._threshold = np.nan
        self.thresholds = np.full(len(stream), np.nan)
        self.flagged = np.zeros(len(stream), bool)
        self.alarms: list[dict[str, Any]] = []

    def add(self, index: NDArray[np.int64], judged: AnomalyVerdicts) -> None:
        """What was found of these rows, just now; their offsets are one more than their places."""
        self._blocks.append(index)
        self.thresholds[index] = self._threshold
        self.flagged[index] = judged.flagged
        threshold = None if self._anomalies is None else self._anomalies.threshold
        self._threshold = np.nan if threshold is None else threshold
        for change in judged.changes:
            if change.until is None:
                first = {"row": change.offset - 1, "first": change.first - 1, "end": None}
                self.alarms.append({"key": change.key, **first, "peak": change.peak})
            else:
                standing = next(a for a in self.alarms if a["key"] == change.key and a["end"] is None)
                standing |= {"end": change.offset - 1, "peak": change.peak, "accepted": change.accepted}

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
        """Record the highest scores of the alarms that are active at the end of the stream."""
        relative = self.relative(scores)
        for alarm in self.alarms:
            if alarm["end"] is None:
                own = [i for i in range(alarm["first"], len(scores)) if self._stream.keys[i] == alarm["key"]]
                alarm["peak"] = float(relative[own].max())

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

    def as_dict(self) -> dict[str, Any]:
        """For the report: the alarms, how many rows were set aside, and the threshold at the end."""
        last = self.thresholds[-1]
        return {
            "alarms": self.alarms,
            "flagged": int(self.flagged.sum()),
            "threshold": None if np.isnan(last) else float(last),
        }
