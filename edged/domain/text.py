"""What a device tells, in lines that people read: the same in terminals, on the page and in reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from edged.charts.figures import NONE, count, figure, percent, plain


def repeating_wins(name: str, model: float | None, repeated: float | None) -> str | None:
    """What is to be told where repeating the last known value beats the model; None where it does not.

    `name` is that of both figures: more is better of an `accuracy`, less of anything else.

    >>> repeating_wins("mae", 0.2, 0.1)
    'repeating the last known value is better than the model: mae 0.1, with the model 0.2'
    """
    if (
        model is None
        or repeated is None
        or not (repeated > model if name == "accuracy" else repeated < model)
    ):
        return None
    figures = f"{name} {figure(name, repeated)}, with the model {figure(name, model)}"
    return f"repeating the last known value is better than the model: {figures}"


def when(seconds: float | None) -> str:
    """A moment, in this machine's zone."""
    return NONE if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


SHOWN = 4  # features or reasons in one line
HIDDEN_FIELDS = ("event", "ts", "seq", "boot", "historical")


def happening(said: Mapping[str, Any]) -> str:
    """What an event says, in one line; about learning its summary (see `edged.domain.outcomes`).

    >>> happening({"event": "training_started", "ts": 0.0, "run": 4, "trigger": "labels", "new": 64})
    'Run 4 started (labels), 64 new labels'
    >>> happening({"event": "something_new", "ts": 0.0, "count": 3})
    'something new: count 3'
    """
    if said.get("summary"):
        return str(said["summary"])
    describe = DESCRIPTIONS.get(said["event"])
    if describe is not None:
        return describe(said)
    rest = ", ".join(
        f"{name} {_brief(value)}"
        for name, value in said.items()
        if name not in HIDDEN_FIELDS and value is not None
    )
    name = said["event"].replace("_", " ")
    return f"{name}: {rest}" if rest else name


def _brief(value: Any) -> str:
    if isinstance(value, float):
        return plain(value)
    if isinstance(value, list | tuple):
        more = "" if len(value) <= SHOWN else f" and {len(value) - SHOWN} more"
        return ", ".join(map(_brief, value[:SHOWN])) + more
    if isinstance(value, dict):
        return ", ".join(f"{name} {_brief(one)}" for name, one in list(value.items())[:SHOWN])
    return str(value)


def _finished(said: Mapping[str, Any]) -> str:
    text = f"Run {said['run']}: {said['outcome']}"
    if said.get("steps") is not None and said.get("seconds") is not None:
        text += f", {said['steps']:,} steps in {said['seconds']:.1f} s"
    return text + (f", {said['error']}" if said.get("error") else "")


def _drifted(said: Mapping[str, Any]) -> str:
    moved = [feature["feature"] for feature in said.get("features") or ()]
    text = (
        f"{said['level'].capitalize()} in {said['source']} at sample {said['offset']:,} ({said['detector']}"
    )
    text += (
        f" {plain(said['statistic'])}, threshold {plain(said['threshold'])})" if "statistic" in said else ")"
    )
    return text + (f": {_brief(moved)}" if moved else "")


def _requested(said: Mapping[str, Any]) -> str:
    sure = "" if said.get("confidence") is None else f" ({percent(said['confidence'])})"
    return f"Label requested for {said['id']} ({said['key']}), predicted: {_brief(said['answer'])}{sure}"


def _anomaly(said: Mapping[str, Any]) -> str:
    if said["state"] == "start":
        return f"Alarm started: {said['key']}"
    return f"Alarm cleared: {said['key']}, after {said.get('samples', '?')} samples"


def _quarantined(said: Mapping[str, Any]) -> str:
    more = f", and {said['more']:,} more" if said.get("more") else ""
    return f"Quarantined ({said['reason']}): {said.get('detail') or said.get('topic')}{more}"


DESCRIPTIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "started": lambda e: f"edged {e['version']} started with model {e['model']} ({e['boot_reason']})",
    "stream_failed": lambda e: f"Stream {e['stream']} does not run: {e['problem']}",
    "training_started": lambda e: f"Run {e['run']} started ({e['trigger']}), {count(e['new'], 'new label')}",
    "training_finished": _finished,
    "drift_detected": _drifted,
    "label_requested": _requested,
    "anomaly": _anomaly,
    "sample_quarantined": _quarantined,
    "sensor_stuck": lambda e: f"{e['key']} stuck: {_brief(e['features'])}",
    "sensor_missing": lambda e: f"{e['key']} sends no value of {_brief(e['features'])}",
    "sensor_back": lambda e: f"{e['key']} sends {_brief(e['features'])} again",
    "sensor_moves": lambda e: f"{e['key']} recovered: {_brief(e['features'])}",
    "sensor_flooding": lambda e: f"{e['key']} exceeds its rate limit",
    "sample_implausible": lambda e: f"{e['key']}: implausible value {plain(e['value'])} of {e['feature']}",
}
