"""The figures of an evaluation, and how it went over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edged.domain.drift.signals import DriftSignal
from edged.domain.events import CandidateRejected, ModelPromoted, ModelRolledBack
from edged.domain.judging import metrics
from edged.domain.judging.outputs import answers, errors
from edged.domain.judging.verdict import Verdict
from edged.domain.protocols import ServedModel
from edged.domain.stream.schema import Schema
from edged.domain.text import repeating_wins
from edged.workbench.evaluation.figures import (
    AlarmCurves,
    AnomalyFigures,
    CandidateOutcome,
    ClassFigures,
    DriftFigures,
    EvaluationHistory,
    EvaluationReport,
    FoundAgain,
    ModelSwap,
    QualityCurves,
)
from edged.workbench.evaluation.meters import Detections
from edged.workbench.evaluation.replay import Replay

WINDOW = 1000
CURVE_WINDOWS = 80
SMALLEST_WINDOW = 25
SCORE_WINDOWS = 300  # of an anomaly score over time


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
        rejections=replay.models.rejections,
        rollbacks=replay.models.rollbacks,
        drifts=tuple(_drift(signal, replay.schema.names) for signal in replay.drifts),
        labels_used=replay.labels_used,
        anomaly=_anomaly_figures(replay),
        forgetting=_forgetting(replay),
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


def row_values(replay: Replay) -> NDArray[np.float64]:
    """A value of each scored row `(n,)`, whose mean is the main metric of the adapted model.

    Correct answers, absolute errors, or anomaly scores. Where anomalies were recorded the metric is the area
    under the ROC curve, as a mean of placements: DeLong et al., "Comparing the areas under two or more
    correlated receiver operating characteristic curves", Biometrics 44 (1988).
    """
    rows = scored_rows(replay)
    if replay.schema.labels_itself:
        scores = replay.answers[:, 0]
        if replay.stream.truth is None:
            return scores[rows].astype(np.float64)
        relative = replay.detections.relative(scores)
        return metrics.placements(replay.stream.truth[rows], relative[rows])
    wrong = errors(replay.schema, replay.answers[rows], replay.stream.y[rows])
    return 1.0 - wrong if replay.schema.task == "classify" else wrong


def scored_rows(replay: Replay) -> NDArray[np.int64]:
    """Positions of the rows that count: after pre-training, with a known target."""
    start = replay.pretrain
    return np.arange(start, len(replay.stream))[replay.stream.known[start:]]


def detections_of(replay: Replay, answer: NDArray[np.float32]) -> Detections:
    """What was found in the replay, or would have been with another line of scores."""
    if answer is replay.answers:
        return replay.detections
    return replay.detections.of_scores(replay.config.anomaly.rules(), answer[:, 0])


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
        _skill(replay.schema, served, window.x, window.y)
        for served in (replay.predictor.champion, replay.frozen)
    )
    return theirs - ours


def _skill(schema: Schema, served: ServedModel, x: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    """Accuracy of a model on samples `(n, d)` with targets `(n, targets)`, or the negative absolute error."""
    answer = answers(schema, served.model.predict(x)).astype(np.float64)
    figures = metrics.score(schema, y.astype(np.float64), answer)
    return figures["accuracy"] if schema.task == "classify" else -figures["mae"]


# ---- over time -----------------------------------------------------------------------------------


def history(replay: Replay) -> EvaluationHistory:
    """Collect what the page of a report shows beside its figures."""
    scored = scored_rows(replay)
    lines = {"adapted": replay.answers, "frozen": replay.frozen_answers}
    if not replay.schema.labels_itself:
        lines["no_change"] = no_change(replay)
    return EvaluationHistory(
        task=replay.schema.task,
        figure=main_figure(replay.schema),
        pretrain=replay.pretrain,
        delay=replay.options.delay,
        label_rate=replay.options.rate,
        seed=replay.options.seed,
        curves=_curves(replay, scored, lines),
        per_class=tuple(_per_class(replay, scored, lines)),
        alarms=_alarms(replay, scored),
        swaps=_swaps(replay),
        verdicts=tuple(_verdicts(replay)),
        drifts=tuple(replay.drifts),
    )


def _curves(
    replay: Replay, scored: NDArray[np.int64], lines: dict[str, NDArray[np.float32]]
) -> QualityCurves:
    """Quality of each line in consecutive windows of equal length."""
    parts = _parts(scored, CURVE_WINDOWS, SMALLEST_WINDOW)
    quality = {line: [window_quality(replay, part, made) for part in parts] for line, made in lines.items()}
    return QualityCurves(*_bounds(parts), quality)


def _bounds(parts: list[NDArray[np.int64]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the first and the last row of each window."""
    return tuple(int(part[0]) for part in parts), tuple(int(part[-1]) for part in parts)


def _parts(scored: NDArray[np.int64], most: int, smallest: int = 1) -> list[NDArray[np.int64]]:
    """Consecutive windows of equal length, at most about `most`; a short rest joins the last."""
    length = max(smallest, -(-len(scored) // most))
    parts = [scored[i : i + length] for i in range(0, len(scored), length)]
    if len(parts) > 1 and len(parts[-1]) < length // 2:
        parts[-2:] = [np.concatenate(parts[-2:])]
    return parts


def _per_class(
    replay: Replay, scored: NDArray[np.int64], lines: dict[str, NDArray[np.float32]]
) -> list[ClassFigures]:
    """Recall and precision of every class."""
    if replay.schema.task != "classify":
        return []
    y = replay.stream.y[scored, 0]
    adapted, frozen = (lines[line][scored, 0] for line in ("adapted", "frozen"))
    return [
        ClassFigures(
            name, int((y == i).sum()), _found_again(y == i, adapted == i), _found_again(y == i, frozen == i)
        )
        for i, name in enumerate(replay.schema.known_classes)
    ]


def _found_again(true: NDArray[np.bool_], answered: NDArray[np.bool_]) -> FoundAgain:
    hits = float((answered & true).sum())
    return FoundAgain(
        hits / float(true.sum()) if true.any() else None,
        hits / float(answered.sum()) if answered.any() else None,
    )


def _alarms(replay: Replay, scored: NDArray[np.int64]) -> AlarmCurves | None:
    """Scores over time, window by window; None for other tasks."""
    if not replay.schema.labels_itself:
        return None
    parts = _parts(scored, SCORE_WINDOWS)
    highest = []
    for answer in (replay.answers, replay.frozen_answers):
        relative = detections_of(replay, answer).relative(answer[:, 0])
        highest.append(tuple(float(relative[part].max()) for part in parts))
    return AlarmCurves(*_bounds(parts), _stretches(replay), *highest)


def _stretches(replay: Replay) -> tuple[tuple[int, int], ...]:
    """First and last row of each anomaly that the recording knows of."""
    if replay.stream.truth is None:
        return ()
    odd = np.concatenate([[0], (replay.stream.truth != 0).astype(np.int8), [0]])
    edges = np.flatnonzero(np.diff(odd)).reshape(-1, 2)
    return tuple((int(first), int(end) - 1) for first, end in edges)


def _swaps(replay: Replay) -> tuple[ModelSwap, ...]:
    """Each change of the model that answers: at which sample, to which version."""
    versions = replay.versions[replay.pretrain :]
    changes = np.flatnonzero(np.diff(versions)) + 1
    return tuple(ModelSwap(int(i) + replay.pretrain, int(versions[i])) for i in changes)


def _verdicts(replay: Replay) -> Iterator[CandidateOutcome]:
    """What became of every candidate, and every rollback, in order."""
    for sample, event in replay.events:
        match event:
            case ModelPromoted(version=version, verdict=Verdict() as verdict):
                yield _outcome(sample, "promoted", version, verdict)
            case CandidateRejected(judged=judged):
                yield _outcome(sample, "refused", None, judged.verdict)
            case ModelRolledBack(to=version, reason=reason):
                yield CandidateOutcome(sample, "rolled back", version, (reason,), {}, forgets=False)


def _outcome(sample: int, outcome: str, version: int | None, verdict: Verdict) -> CandidateOutcome:
    return CandidateOutcome(
        sample, outcome, version, verdict.reasons, verdict.numbers, forgets=verdict.forgets
    )
