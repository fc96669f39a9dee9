"""How an evaluation went over time: quality in windows, swaps, verdicts, drift, classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.events import CandidateRejected, ModelPromoted, ModelRolledBack
from edged.domain.judging.verdict import Verdict
from edged.workbench.evaluation.figures import (
    AlarmCurve,
    AlarmCurves,
    CandidateOutcome,
    ClassFigures,
    EvaluationHistory,
    FoundAgain,
    ModelSwap,
    QualityCurves,
)
from edged.workbench.evaluation.score import (
    detections_of,
    main_figure,
    no_change,
    scored_rows,
    window_quality,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.workbench.evaluation.replay import Replay

WINDOWS = 80
SMALLEST_WINDOW = 25
POINTS = 300  # of an anomaly score over time


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
    parts = _parts(scored, WINDOWS, SMALLEST_WINDOW)
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
    """Score and threshold over time, window by window, and the alarms; None for other tasks."""
    if not replay.schema.labels_itself:
        return None
    parts = _parts(scored, POINTS)
    return AlarmCurves(
        *_bounds(parts),
        _stretches(replay),
        _alarm_curve(replay, parts, replay.answers),
        _alarm_curve(replay, parts, replay.frozen_answers),
    )


def _alarm_curve(replay: Replay, parts: list[NDArray[np.int64]], answer: NDArray[np.float32]) -> AlarmCurve:
    found = detections_of(replay, answer)
    relative = found.relative(answer[:, 0])
    return AlarmCurve(
        tuple(found.alarms),
        int(found.flagged.sum()),
        tuple(float(np.median(relative[part])) for part in parts),
        tuple(float(relative[part].max()) for part in parts),
    )


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
