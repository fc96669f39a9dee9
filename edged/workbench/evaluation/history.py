"""How an evaluation went over time: quality in windows, swaps, verdicts, drift, classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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


def history(replay: Replay) -> dict[str, Any]:
    """What the page of a report shows beside its figures, ready for JSON."""
    scored = scored_rows(replay)
    lines = {"adapted": replay.answers, "frozen": replay.frozen_answers}
    if not replay.schema.labels_itself:
        lines["no_change"] = no_change(replay)
    return {
        "task": replay.schema.task,
        "figure": main_figure(replay.schema),
        "pretrain": replay.pretrain,
        "delay": replay.options.delay,
        "label_rate": replay.options.rate,
        "seed": replay.options.seed,
        "curves": _curves(replay, scored, lines),
        "per_class": _per_class(replay, scored, lines),
        "alarms": _alarms(replay, scored),
        "swaps": _swaps(replay),
        "verdicts": _verdicts(replay),
        "drifts": [signal.as_dict() for signal in replay.drifts],
    }


def _curves(
    replay: Replay, scored: NDArray[np.int64], lines: dict[str, NDArray[np.float32]]
) -> dict[str, Any]:
    """Quality of each line in consecutive windows of equal length."""
    parts = _parts(scored, WINDOWS, SMALLEST_WINDOW)
    return {
        "starts": [int(part[0]) for part in parts],
        "ends": [int(part[-1]) for part in parts],
        **{line: [window_quality(replay, part, answer) for part in parts] for line, answer in lines.items()},
    }


def _parts(scored: NDArray[np.int64], most: int, smallest: int = 1) -> list[NDArray[np.int64]]:
    """Consecutive windows of equal length, at most about `most`; a short rest joins the last."""
    length = max(smallest, -(-len(scored) // most))
    parts = [scored[i : i + length] for i in range(0, len(scored), length)]
    if len(parts) > 1 and len(parts[-1]) < length // 2:
        parts[-2:] = [np.concatenate(parts[-2:])]
    return parts


def _per_class(
    replay: Replay, scored: NDArray[np.int64], lines: dict[str, NDArray[np.float32]]
) -> list[dict[str, Any]]:
    """Recall and precision of every class; None where the class or such an answer never occurred."""
    if replay.schema.task != "classify":
        return []
    y = replay.stream.y[scored, 0]
    rows = []
    for index, name in enumerate(replay.schema.known_classes):
        row: dict[str, Any] = {"class": name, "samples": int((y == index).sum())}
        for line in ("adapted", "frozen"):
            answered = lines[line][scored, 0] == index
            hits = float((answered & (y == index)).sum())
            row[line] = {
                "recall": hits / row["samples"] if row["samples"] else None,
                "precision": hits / float(answered.sum()) if answered.any() else None,
            }
        rows.append(row)
    return rows


def _alarms(replay: Replay, scored: NDArray[np.int64]) -> dict[str, Any] | None:
    """Score and threshold over time, window by window, and the alarms; None for other tasks."""
    if not replay.schema.labels_itself:
        return None
    parts = _parts(scored, POINTS)
    told: dict[str, Any] = {
        "starts": [int(part[0]) for part in parts],
        "ends": [int(part[-1]) for part in parts],
        "truth": _stretches(replay),
    }
    for name, answer in (("adapted", replay.answers), ("frozen", replay.frozen_answers)):
        found = detections_of(replay, answer)
        relative = found.relative(answer[:, 0])
        told[name] = {
            "alarms": found.alarms,
            "flagged": int(found.flagged.sum()),
            "relative": [float(np.median(relative[part])) for part in parts],
            "highest": [float(relative[part].max()) for part in parts],
        }
    return told


def _stretches(replay: Replay) -> list[list[int]]:
    """First and last row of each anomaly that the recording knows of."""
    if replay.stream.truth is None:
        return []
    odd = np.concatenate([[0], (replay.stream.truth != 0).astype(np.int8), [0]])
    edges = np.flatnonzero(np.diff(odd)).reshape(-1, 2)
    return [[int(first), int(end) - 1] for first, end in edges]


def _swaps(replay: Replay) -> list[dict[str, int]]:
    """Each change of the model that answers: at which sample, to which version."""
    versions = replay.versions[replay.pretrain :]
    changes = np.flatnonzero(np.diff(versions)) + 1
    return [{"sample": int(i) + replay.pretrain, "version": int(versions[i])} for i in changes]


def _verdicts(replay: Replay) -> list[dict[str, Any]]:
    """What became of every candidate, and every rollback, in order."""
    told = {"model_promoted": "promoted", "candidate_rejected": "refused", "model_rolled_back": "rolled back"}
    return [
        {
            "sample": event["sample"],
            "outcome": told[event["event"]],
            "version": event.get("version", event.get("to")),
            "reasons": event.get("reasons", [event.get("reason", "")]),
            "numbers": event.get("numbers", {}),
            "forgets": event.get("forgets", False),
        }
        for event in replay.events
        if event["event"] in told
    ]
