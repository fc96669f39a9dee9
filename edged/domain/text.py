"""How a device is doing, in lines that people read: the same in `edged status`, `ctl watch` and on the page.

A status is what `edged status --json` prints and `request/status` answers; what is missing in it is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from edged.charts.figures import NONE, count, figure, percent, plain, size
from edged.domain.commands.rules import CLOCK_SET

if TYPE_CHECKING:
    from edged.domain.json_fields import JsonObject

TROUBLES = {"throttled": "CPU throttled", "under_voltage": "undervoltage", "on_battery": "on battery"}
FIGURES = ("accuracy", "error", "coverage")
ENOUGH_LABELS = 100  # for live quality to be compared


def summary(status: Mapping[str, Any]) -> dict[str, str]:
    """What there is to tell, by name; times are of this machine's zone."""
    runs_state = status["training"]
    lines = {"state": str(status["state"]) + (f" (pid {status['pid']})" if status.get("pid") else "")}
    if troubles := attention(status):
        lines["attention"] = "; ".join(troubles)
    if remarks := notes(status):
        lines["note"] = "; ".join(remarks)
    lines |= {
        "paused": ", ".join(status.get("on_hold") or ()) or NONE,
        "model": _model(status["model"]),
        "live quality": quality(status["model"].get("quality")),
        "learned": learned(runs_state),
        "drift": drift(status.get("drift") or {}),
        "training": training(runs_state),
    }
    if last := runs_state.get("last"):
        lines["last run"] = last_run(last)
    if keys := status.get("keys"):
        lines["keys"] = key_models(keys)
    lines |= {
        "engine": str(status.get("engine") or "auto"),
        "samples": f"{status['samples']:,} received, {status['evicted']:,} evicted",
        "labels": f"{status['labels']:,}",
        "quarantined": f"{status['quarantined']:,}",
        "outbox": outbox(status["outbox"]),
    }
    if head := status.get("audit"):
        lines["audit"] = f"{head['seq']}:{head['hash']}"
    return lines | _hardware(status.get("host") or {}) | _wear(status.get("flash") or {})


def attention(status: Mapping[str, Any]) -> list[str]:
    """What keeps the device from being well, most pressing first; nothing where all is well.

    >>> attention({"problem": None, "training": {"paused": None}, "stuck": 2, "host": {"throttled": True}})
    ['2 features stuck', 'CPU throttled']
    >>> attention({"model": {"quality": {"accuracy": 0.8, "labelled": 100, "repeated": 0.9}}})
    ['repeating the last known value is better than the model: accuracy 90.0 %, with the model 80.0 %']
    >>> attention({"model": {"quality": {"error": 0.1, "labelled": 99, "repeated": 0.05}}})
    []
    """
    found = [str(status["problem"])] if status.get("problem") else []
    if paused := status.get("training", {}).get("paused"):
        found.append(f"training paused: {paused['reason']} ({paused['remedy']})")
    if stuck := status.get("stuck"):
        found.append(f"{count(stuck, 'feature')} stuck")
    live = (status.get("model") or {}).get("quality") or {}
    if live.get("labelled", 0) >= ENOUGH_LABELS:
        name = "accuracy" if "accuracy" in live else "error"
        found += filter(None, [repeating_wins(name, live.get(name), live.get("repeated"))])
    host = status.get("host") or {}
    found += [text for name, text in TROUBLES.items() if host.get(name)]
    if host.get("clock_synchronised") is False and status.get("ts", CLOCK_SET) < CLOCK_SET:
        found.append("the clock was not set since the device was switched on")
    return found


def notes(status: Mapping[str, Any]) -> list[str]:
    """What is worth knowing, but needs nobody's attention.

    >>> notes({"ts": 1.8e9, "host": {"clock_synchronised": False}})
    ['clock not synchronised: no time server found']
    """
    unsynchronised = (status.get("host") or {}).get("clock_synchronised") is False
    if unsynchronised and status.get("ts", CLOCK_SET) >= CLOCK_SET:
        return ["clock not synchronised: no time server found"]
    return []


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


def quality(live: Mapping[str, Any] | None) -> str:
    """Live quality and how many labelled predictions it rests on.

    >>> quality({"accuracy": 0.9, "labelled": 12345, "repeated": 0.5})
    'accuracy 90.0 % over 12,345 labels; repeating the last value 50.0 %'
    """
    live = live or {}
    parts = [f"{name} {figure(name, live[name])}" for name in FIGURES if live.get(name) is not None]
    if not parts:
        return NONE
    name = "accuracy" if "accuracy" in live else "error"
    repeated = live.get("repeated")
    beside = "" if repeated is None else f"; repeating the last value {figure(name, repeated)}"
    return f"{', '.join(parts)} over {count(live['labelled'], 'label')}{beside}"


def key_models(report: Mapping[str, Any]) -> str:
    """How many keys have models of their own.

    >>> key_models({"own": 12, "answering": 9, "loaded": 5})
    '12 with models of their own: 9 answer, 5 are loaded'
    """
    own, answering, loaded = (f"{report[name]:,}" for name in ("own", "answering", "loaded"))
    return f"{own} with models of their own: {answering} answer, {loaded} are loaded"


def learned(state: Mapping[str, Any]) -> str:
    """Say what the newest labels did, and when."""
    if not state.get("summary"):
        return "nothing yet: training starts when enough labels have arrived"
    return f"{state['summary']} ({when(state.get('summary_ts'))})"


def drift(state: Mapping[str, Any]) -> str:
    """How many signals there were, and the newest.

    >>> drift({"signals": 2, "last": {"level": "drift", "source": "error", "offset": 4711}})
    '2 signals, latest: drift in error at sample 4,711'
    """
    if not state.get("signals"):
        return "none"
    last, text = state.get("last"), count(state["signals"], "signal")
    if last is None:
        return text
    return f"{text}, latest: {last['level']} in {last['source']} at sample {last['offset']:,}"


def training(state: Mapping[str, Any]) -> str:
    """How many runs there were, how far the present one is, and what a wanted one waits for."""
    text = runs(state["runs"])
    if (progress := state.get("progress")) is not None:
        text += f", running: {steps(progress)}"
    elif waiting := state.get("waiting_for"):
        text += f", blocked by {', '.join(waiting)}"
    return text


def runs(number: int) -> str:
    """How many there were.

    >>> runs(1), runs(1200)
    ('1 run', '1,200 runs')
    """
    return count(number, "run")


def steps(progress: Mapping[str, Any]) -> str:
    """How far a run is.

    >>> steps({"run": 3, "step": 40, "steps": 200, "loss": 0.5})
    'run 3, step 40 of 200, loss 0.5'
    """
    text = f"run {progress['run']}, " if "run" in progress else ""
    text += f"step {progress['step']}" + (f" of {progress['steps']}" if "steps" in progress else "")
    return text + (f", loss {plain(progress['loss'])}" if progress.get("loss") is not None else "")


def last_run(run: Mapping[str, Any]) -> str:
    """The newest run and what came of it."""
    text = f"{run.get('id', run.get('run'))} ({run['trigger']})"
    return f"{text}: {run['outcome']} at {when(run['ended'])}" if run.get("ended") else f"{text}: running"


def outbox(state: Mapping[str, Any]) -> str:
    """Say what waits for the broker."""
    return f"{state['pending']:,} waiting, {state['dropped']:,} dropped"


def _model(model: Mapping[str, Any]) -> str:
    if model["version"] is None:
        return "none yet"
    text = f"version {model['version']} since {when(model['since'])}"
    if model.get("parent") is not None:
        text += f", parent {model['parent']}"
    if model.get("missing"):
        text += f", untrained: {model['missing']}"
    return text + (", pinned" if model.get("pinned") else "")


def _hardware(host: Mapping[str, Any]) -> dict[str, str]:
    """Heat and power, as far as the machine tells."""
    rows = {}
    if host.get("temperature_c") is not None:
        rows["temperature"] = f"{host['temperature_c']:.0f} °C"
    if any(host.get(name) is not None for name in (*TROUBLES, "power_mode")):
        found = [text for name, text in TROUBLES.items() if host.get(name)] or ["OK"]
        found += [f"power mode {host['power_mode']}"] if host.get("power_mode") else []
        rows["board"] = ", ".join(found)
    return rows


def _wear(flash: Mapping[str, Any]) -> dict[str, str]:
    if flash.get("written") is None:
        return {}
    day = " since startup" if flash.get("per_day") is None else f", {size(flash['per_day'])} per day"
    each = "" if flash.get("per_sample") is None else f", {size(flash['per_sample'])} per sample"
    return {"flash": f"{size(flash['written'])} written{day}{each}"}


def status_of(messages: Mapping[str, Mapping[str, Any]]) -> JsonObject | None:
    """The status as far as a device's own messages tell it; None before they have told enough.

    `messages` are the newest of each topic below the device's own: `status`, `state/model`,
    `state/training`, `state/drift`, `state/buffer`, `metrics`.
    """
    needed = ("status", "state/model", "state/training", "state/buffer", "metrics")
    if any(name not in messages for name in needed):
        return None
    status, model, runs, buffer, metrics = (messages[name] for name in needed)
    online = status["state"] == "online"
    problem = metrics.get("problem") if online else None
    holding = {"ingest": buffer, "serving": model, "training": runs}
    host = metrics["host"]
    return {
        "state": "degraded" if problem else status["state"],
        "problem": problem,
        "on_hold": [name for name, state in holding.items() if state.get("on_hold")],
        "samples": metrics["ingest"]["samples"],
        "labels": metrics["labels"].get("count", 0),
        "quarantined": metrics["quarantine"],
        "evicted": metrics["buffer"]["evicted"],
        "ts": metrics["ts"],
        "model": {**model, "quality": metrics["live"]},
        "drift": messages.get("state/drift"),
        "training": {**runs, "progress": metrics["training"]["running"] if online else None},
        "stuck": metrics["ingest"].get("stuck"),
        "outbox": metrics["outbox"],
        "engine": runs["engine"],
        "host": host if online else {},
        "flash": metrics.get("flash") or {},
    }


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


def _promoted(said: Mapping[str, Any]) -> str:
    why = "; ".join(map(str, said["reasons"]))
    return f"Version {said['version']} promoted (parent {said['parent']}, {said['origin']})" + (
        why and f": {why}"
    )


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
    "candidate_rejected": lambda e: f"Candidate from run {e['run']} rejected: {_brief(e['reasons'])}",
    "candidates_refused": lambda e: f"The last {e['count']} candidates were rejected: {e['cause']}",
    "model_promoted": _promoted,
    "model_rolled_back": lambda e: f"Rollback from version {e['from']} to {e['to']}: {e['reason']}",
    "drift_detected": _drifted,
    "label_requested": _requested,
    "anomaly": _anomaly,
    "sample_quarantined": _quarantined,
    "sensor_stuck": lambda e: f"{e['key']} stuck: {_brief(e['features'])}",
    "sensor_missing": lambda e: f"{e['key']} sends no value of {_brief(e['features'])}",
    "sensor_back": lambda e: f"{e['key']} sends {_brief(e['features'])} again",
    "sensor_moves": lambda e: f"{e['key']} recovered: {_brief(e['features'])}",
    "sensor_flooding": lambda e: f"{e['key']} exceeds its rate limit",
    "labels_disputed": lambda e: e["detail"],
    "sample_implausible": lambda e: f"{e['key']}: implausible value {plain(e['value'])} of {e['feature']}",
}
