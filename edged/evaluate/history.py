"""How an evaluation went over time: quality in windows, swaps, verdicts, drift, classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edged.evaluate.score import alarm_threshold, main_figure, no_change, score_rows, scored_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.evaluate.replay import Replay

WINDOWS = 80
SMALLEST_WINDOW = 25


def history(replay: Replay) -> dict[str, Any]:
    """What the page of a report shows beside its figures, ready for JSON."""
    scored = scored_rows(replay)
    lines = {"adapted": replay.answers, "frozen": replay.answers_of(replay.frozen)}
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
    length = max(SMALLEST_WINDOW, -(-len(scored) // WINDOWS))
    parts = [scored[i : i + length] for i in range(0, len(scored), length)]
    if len(parts) > 1 and len(parts[-1]) < length // 2:
        parts[-2:] = [np.concatenate(parts[-2:])]
    name = main_figure(replay.schema)
    return {
        "starts": [int(part[0]) for part in parts],
        "ends": [int(part[-1]) for part in parts],
        **{line: [_quality(replay, part, answer, name) for part in parts] for line, answer in lines.items()},
    }


def _quality(replay: Replay, rows: NDArray[np.int64], answer: NDArray[np.float32], name: str) -> float:
    if replay.schema.labels_itself:
        return float(answer[rows].mean())
    return score_rows(replay, rows, answer)[name]


def _per_class(
    replay: Replay, scored: NDArray[np.int64], lines: dict[str, NDArray[np.float32]]
) -> list[dict[str, Any]]:
    """Recall and precision of every class; None where the class or such an answer never occurred."""
    if replay.schema.task != "classify":
        return []
    y = replay.stream.y[scored, 0]
    rows = []
    for index, name in enumerate(replay.schema.classes):
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
    """Where the anomaly score was above its threshold; None for other tasks."""
    if not replay.schema.labels_itself:
        return None
    threshold = alarm_threshold(replay, replay.answers)
    above = scored[replay.answers[scored, 0] > threshold]
    return {
        "threshold": threshold,
        "samples": len(above),
        "first": int(above[0]) if len(above) else None,
        "lasting": _lasting(replay.answers[scored, 0] > threshold, scored),
    }


def _lasting(above: NDArray[np.bool_], scored: NDArray[np.int64], run: int = 10) -> int | None:
    """Where the score first stayed above the threshold for `run` samples on end."""
    total = np.concatenate([[0], np.cumsum(above)])
    found = np.flatnonzero(total[run:] - total[:-run] == run)
    return int(scored[found[0]]) if len(found) else None


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
        }
        for event in replay.events
        if event["event"] in told
    ]
