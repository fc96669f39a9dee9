"""Events as people read them: one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.summary import number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SHOWN = 4  # features or reasons in one line
UNTOLD = ("event", "ts", "seq", "boot", "historical")


def happening(said: Mapping[str, Any]) -> str:
    """What an event says, in one line.

    >>> happening({"event": "model_rolled_back", "ts": 0.0, "from": 4, "to": 3, "reason": "command"})
    'rolled back from version 4 to 3: command'
    >>> happening({"event": "something_new", "ts": 0.0, "count": 3})
    'something new: count 3'
    """
    tell = TELLERS.get(said["event"])
    if tell is not None:
        return tell(said)
    rest = ", ".join(
        f"{name} {_brief(value)}" for name, value in said.items() if name not in UNTOLD and value is not None
    )
    name = said["event"].replace("_", " ")
    return f"{name}: {rest}" if rest else name


def _brief(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        more = "" if len(value) <= SHOWN else f" and {len(value) - SHOWN} more"
        return ", ".join(map(_brief, value[:SHOWN])) + more
    if isinstance(value, dict):
        return ", ".join(f"{name} {_brief(one)}" for name, one in list(value.items())[:SHOWN])
    return str(value)


def _finished(said: Mapping[str, Any]) -> str:
    told = f"run {said['run']}: {said['outcome']}"
    if said.get("steps") is not None and said.get("seconds") is not None:
        told += f", {said['steps']} steps in {said['seconds']:.1f} s"
    return told + (f", {said['error']}" if said.get("error") else "")


def _promoted(said: Mapping[str, Any]) -> str:
    why = "; ".join(map(str, said["reasons"]))
    return f"version {said['version']} serves, from {said['parent']} ({said['origin']})" + (
        why and f": {why}"
    )


def _drifted(said: Mapping[str, Any]) -> str:
    moved = [feature["feature"] for feature in said.get("features") or ()]
    told = f"{said['level']}: {said['source']} changed at sample {said['offset']:,} ({said['detector']}"
    told += f", {number(said['statistic'])} over {number(said['threshold'])})" if "statistic" in said else ")"
    return told + (f": {_brief(moved)}" if moved else "")


def _requested(said: Mapping[str, Any]) -> str:
    sure = "" if said.get("confidence") is None else f", {100 * said['confidence']:.0f} % sure"
    return f"label wanted of {said['id']} ({said['key']}): model says {_brief(said['answer'])}{sure}"


def _anomaly(said: Mapping[str, Any]) -> str:
    if said["state"] == "start":
        return f"alarm of {said['key']} began"
    return f"alarm of {said['key']} ended after {said.get('samples', '?')} samples"


def _quarantined(said: Mapping[str, Any]) -> str:
    more = f", and {said['more']} more" if said.get("more") else ""
    return f"quarantined ({said['reason']}): {said.get('detail') or said.get('topic')}{more}"


TELLERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "started": lambda e: f"started, version {e['version']}, model {e['model']} ({e['boot_reason']})",
    "training_started": lambda e: f"run {e['run']} began ({e['trigger']}), {e['new']} new samples",
    "training_finished": _finished,
    "candidate_rejected": lambda e: f"candidate of run {e['run']} refused: {_brief(e['reasons'])}",
    "model_promoted": _promoted,
    "model_rolled_back": lambda e: f"rolled back from version {e['from']} to {e['to']}: {e['reason']}",
    "drift_detected": _drifted,
    "label_requested": _requested,
    "anomaly": _anomaly,
    "sample_quarantined": _quarantined,
    "sensor_stuck": lambda e: f"{e['key']} stands still: {_brief(e['features'])}",
    "sensor_moves": lambda e: f"{e['key']} moves again: {_brief(e['features'])}",
    "sensor_flooding": lambda e: f"{e['key']} sends too much",
}
