"""The figures of an evaluation, and what a detector found in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.judging import metrics
from edged.domain.judging.outputs import errors
from edged.domain.stream.anomaly import Anomalies
from edged.domain.text import repeating_wins
from edged.workbench.evaluation.figures import (
    AnomalyFigures,
    DetectionFigures,
    DriftFigures,
    EvaluationReport,
    LastOfKeys,
    RecordedAlarm,
)
from edged.workbench.evaluation.forgetting import skill

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.drift.signals import DriftSignal
    from edged.domain.stream.anomaly_rules import AnomalyRules, AnomalyVerdicts
    from edged.domain.stream.schema import Schema
    from edged.workbench.evaluation.replay import Replay
    from edged.workbench.recordings.stream import Stream

WINDOW = 1000


def report(replay: Replay) -> EvaluationReport:
    """Collect the figures of a replay that has ended."""
    stream, scored = replay.stream, scored_rows(replay)
    adapted, repeated = (score_rows(replay, scored, made) for made in (replay.answers, no_change(replay)))
    return EvaluationReport(
        samples=len(stream),
        scored=len(scored),
        quarantined=stream.refused,
        warnings=(*stream.warnings, *_loses(adapted, repeated)),
        metric=adapted,
        frozen=score_rows(replay, scored, replay.frozen_answers),
        no_change=repeated,
        experts={
            f"expert{i}": score_rows(replay, scored[np.isfinite(answer[scored, 0])], answer)
            for i, answer in enumerate(replay.answers_of_experts(), 1)
        },
        calibration_error=_calibration_error(replay, scored),
        coverage=replay.promises.figures(scored),
        windows=_windows(replay, scored),
        trainings=replay.scheduler.trainings,
        promotions=replay.models.promotions,
        origins=replay.rollout.origins,
        rejections=replay.models.rejections,
        rollbacks=replay.models.rollbacks,
        drifts=tuple(_drift(signal, replay.schema.names) for signal in replay.drifts),
        labels_used=replay.labels_used,
        last_of_keys=_last_of_keys(replay, scored),
        anomaly=_anomaly_figures(replay),
        forgetting=_forgetting(replay),
        retention=replay.retention.figures(replay.frozen),
        engine=replay.scheduler.engine,
        train_seconds=round(replay.scheduler.train_seconds, 3),
        readings=stream.readings,
    )


def _calibration_error(replay: Replay, scored: NDArray[np.int64]) -> float | None:
    """How far confidence is from the share of right answers; None where there is no confidence."""
    scored = scored[np.isfinite(replay.promises.confidence[scored])]
    if replay.schema.task != "classify" or len(scored) == 0:
        return None
    right = replay.answers[scored, 0] == replay.stream.y[scored, 0]
    return metrics.calibration_error(replay.promises.confidence[scored], right)


def _drift(signal: DriftSignal, names: Sequence[str]) -> DriftFigures:
    features = tuple(shift.feature for shift in signal.named(names).features if shift.level == signal.level)
    return DriftFigures(
        signal.offset, signal.detector, signal.level.name.lower(), signal.source, features or None
    )


def _loses(adapted: Mapping[str, float], repeated: Mapping[str, float]) -> list[str]:
    """A warning where nothing is gained over repeating what came last."""
    name = "mae" if "mae" in adapted else "accuracy"
    warning = repeating_wins(name, adapted.get(name), repeated.get(name))
    return [] if warning is None else [warning]


def no_change(replay: Replay) -> NDArray[np.float32]:
    """The last label that had arrived, as the answer: that of row j is known for rows after j + delay."""
    stream = replay.stream
    if replay.schema.labels_itself:
        return np.zeros_like(replay.answers)
    if replay.schema.task == "forecast":
        # The label that arrives with a sample is the sample's own value.
        return np.asarray(stream.x[:, list(replay.config.stream.forecast_columns)])
    known = stream.labelled.copy()
    known[: replay.pretrain] = stream.known[: replay.pretrain]
    newest = np.maximum.accumulate(np.where(known, np.arange(len(stream)), 0))
    # All labels of the pre-training part are known from its end on.
    last = np.maximum(np.arange(len(stream)) - 1 - replay.options.delay, replay.pretrain - 1)
    # Without that part nothing is known at first: the first class, or 0.
    return np.where(last[:, None] < 0, np.float32(0), stream.y[newest[last]])


def score_rows(replay: Replay, rows: NDArray[np.int64], answer: NDArray[np.float32]) -> dict[str, float]:
    """All figures of one line of answers on these rows."""
    if replay.schema.labels_itself:
        return detections_of(replay, answer).figures(rows, answer[:, 0])
    y = replay.stream.y[rows].astype(np.float64)
    return metrics.score(replay.schema, y, answer[rows].astype(np.float64))


def row_errors(replay: Replay) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The scored rows `(n,)` and the error of the adapted answer on each `(n,)`."""
    rows = scored_rows(replay)
    if replay.schema.labels_itself:
        return rows, replay.answers[rows, 0].astype(np.float64)
    return rows, errors(replay.schema, replay.answers[rows], replay.stream.y[rows])


def scored_rows(replay: Replay) -> NDArray[np.int64]:
    """Positions of the rows that count: after pre-training, with a known target."""
    start = replay.pretrain
    return np.arange(start, len(replay.stream))[replay.stream.known[start:]]


def detections_of(replay: Replay, answer: NDArray[np.float32]) -> Detections:
    """What was found in the replay, or would have been with another line of scores."""
    if answer is replay.answers:
        return replay.detections
    return replay.detections.of_scores(replay.config.anomaly.rules(), answer[:, 0])


def _last_of_keys(replay: Replay, rows: NDArray[np.int64]) -> LastOfKeys | None:
    """Figures on the last scored row of each key alone: how remaining life is usually judged.

    None for other tasks, and where there is but one key.
    """
    last = {replay.stream.keys[row]: row for row in rows.tolist()}
    if replay.schema.task != "regress" or len(last) < 2:
        return None
    ends = np.array(sorted(last.values()), np.int64)
    adapted, frozen = (score_rows(replay, ends, line) for line in (replay.answers, replay.frozen_answers))
    return LastOfKeys(len(ends), adapted, frozen)


def _anomaly_figures(replay: Replay) -> AnomalyFigures | None:
    """Alarms of what adapted and of what did not; None for other tasks."""
    if not replay.schema.labels_itself:
        return None
    frozen = detections_of(replay, replay.frozen_answers)
    return AnomalyFigures(replay.detections.summary(), frozen.summary())


def main_figure(schema: Schema) -> str:
    """The figure that stands for the quality of a window."""
    if schema.task == "classify":
        return "accuracy"
    return "mean_score" if schema.labels_itself else "mae"


def _windows(replay: Replay, scored: NDArray[np.int64]) -> tuple[float, ...]:
    parts = [scored[i : i + WINDOW] for i in range(0, len(scored), WINDOW)]
    return tuple(window_quality(replay, part, replay.answers) for part in parts)


def window_quality(replay: Replay, rows: NDArray[np.int64], answer: NDArray[np.float32]) -> float:
    """The main figure of one line of answers on the rows of a window."""
    if replay.schema.labels_itself:
        return float(answer[rows].mean())
    return score_rows(replay, rows, answer)[main_figure(replay.schema)]


def _forgetting(replay: Replay) -> float | None:
    """Loss of skill on the pre-training part's holdout: first champion against the last one.

    Lopez-Paz & Ranzato (2017), backward transfer with the sign turned, for the first task.
    """
    window = replay.first_holdout
    if len(window) == 0:
        return None
    ours, theirs = (
        skill(replay.schema, served, window.x, window.y)
        for served in (replay.predictor.champion, replay.frozen)
    )
    return theirs - ours


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
