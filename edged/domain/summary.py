"""How a device is doing, in lines that people read: the same in `edged status`, `ctl watch` and on the page.

A status is what `edged status --json` prints and `request/status` answers; what is missing in it is left out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TROUBLES = {"throttled": "throttled", "under_voltage": "too little voltage", "on_battery": "on battery"}
FIGURES = ("accuracy", "error")


def summary(status: Mapping[str, Any]) -> dict[str, str]:
    """What there is to tell, by name; times are of this machine's zone."""
    lines = {"state": str(status["state"]) + (f" (pid {status['pid']})" if status.get("pid") else "")}
    troubles = attention(status)
    if troubles:
        lines["attention"] = "; ".join(troubles)
    lines |= {
        "on hold": ", ".join(status.get("on_hold") or ()) or "-",
        "model": _model(status["model"]),
        "live quality": quality(status["model"].get("quality")),
        "drift": drift(status.get("drift") or {}),
        "training": training(status["training"]),
    }
    if last := status["training"].get("last"):
        lines["last run"] = last_run(last)
    lines |= {
        "engine": str(status.get("engine") or "auto"),
        "samples": f"{status['samples']:,} accepted, {status['evicted']:,} evicted",
        "labels": f"{status['labels']:,}",
        "quarantined": f"{status['quarantined']:,}",
        "outbox": outbox(status["outbox"]),
    }
    return lines | _hardware(status.get("host") or {}) | _wear(status.get("flash") or {})


def attention(status: Mapping[str, Any]) -> list[str]:
    """What keeps the device from being well, most pressing first; nothing where all is well.

    >>> attention({"problem": None, "training": {"paused": None}, "stuck": 2, "host": {"throttled": True}})
    ['2 features stand still', 'throttled']
    """
    found = [str(status["problem"])] if status.get("problem") else []
    if paused := status.get("training", {}).get("paused"):
        found.append(f"training paused: {paused['reason']} ({paused['remedy']})")
    if stuck := status.get("stuck"):
        found.append(f"{stuck} feature{'s stand' if stuck > 1 else ' stands'} still")
    host = status.get("host") or {}
    found += [text for name, text in TROUBLES.items() if host.get(name)]
    if host.get("clock_synchronised") is False:
        found.append("no time server has set the clock")
    return found


def number(value: Any) -> str:
    """A figure with four digits behind the point, a count as it is, - for none."""
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def when(seconds: float | None) -> str:
    """A moment, in this machine's zone."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def quality(live: Mapping[str, Any] | None) -> str:
    """Live quality and how many labelled predictions it rests on.

    >>> quality({"accuracy": 0.9, "labelled": 12345})
    'accuracy 0.9000, 12,345 labelled'
    """
    live = live or {}
    told = [f"{name} {number(live[name])}" for name in FIGURES if live.get(name) is not None]
    return ", ".join([*told, f"{live['labelled']:,} labelled"]) if told else "-"


def drift(state: Mapping[str, Any]) -> str:
    """How many signals there were, and the newest.

    >>> drift({"signals": 2, "last": {"level": "drift", "source": "error", "offset": 4711}})
    '2 signals, last: drift of error at sample 4,711'
    """
    if not state.get("signals"):
        return "none"
    count, last = state["signals"], state.get("last")
    told = f"{count} signal{'s' if count > 1 else ''}"
    return (
        told
        if last is None
        else f"{told}, last: {last['level']} of {last['source']} at sample {last['offset']:,}"
    )


def training(state: Mapping[str, Any]) -> str:
    """How many runs there were, how far the present one is, and what a wanted one waits for."""
    told = runs(state["runs"])
    if (progress := state.get("progress")) is not None:
        told += f", running: {steps(progress)}"
    elif waiting := state.get("waiting_for"):
        told += f", waiting for {', '.join(waiting)}"
    return told


def runs(count: int) -> str:
    """How many there were.

    >>> runs(1), runs(1200)
    ('1 run', '1,200 runs')
    """
    return f"{count:,} run{'' if count == 1 else 's'}"


def steps(progress: Mapping[str, Any]) -> str:
    """How far a run is.

    >>> steps({"run": 3, "step": 40, "steps": 200, "loss": 0.5})
    'run 3, step 40 of 200, loss 0.5000'
    """
    told = f"run {progress['run']}, " if "run" in progress else ""
    told += f"step {progress['step']}" + (f" of {progress['steps']}" if "steps" in progress else "")
    return told + (f", loss {number(progress['loss'])}" if progress.get("loss") is not None else "")


def last_run(run: Mapping[str, Any]) -> str:
    """The newest run and what came of it."""
    told = f"{run.get('id', run.get('run'))} ({run['trigger']})"
    return f"{told}: {run['outcome']} at {when(run['ended'])}" if run.get("ended") else f"{told}: under way"


def outbox(state: Mapping[str, Any]) -> str:
    """What the broker does not have yet."""
    return f"{state['pending']:,} waiting, {state['dropped']:,} dropped"


def _model(model: Mapping[str, Any]) -> str:
    told = f"version {model['version']} since {when(model['since'])}"
    if model.get("parent") is not None:
        told += f", from {model['parent']}"
    return told + (", pinned" if model.get("pinned") else "")


def _hardware(host: Mapping[str, Any]) -> dict[str, str]:
    """Heat and power, as far as the machine tells."""
    rows = {}
    if host.get("temperature_c") is not None:
        rows["temperature"] = f"{host['temperature_c']:.0f} °C"
    if any(host.get(name) is not None for name in (*TROUBLES, "power_mode")):
        found = [text for name, text in TROUBLES.items() if host.get(name)] or ["well"]
        found += [f"power mode {host['power_mode']}"] if host.get("power_mode") else []
        rows["board"] = ", ".join(found)
    return rows


def _wear(flash: Mapping[str, Any]) -> dict[str, str]:
    if flash.get("written") is None:
        return {}
    day = " so far" if flash.get("per_day") is None else f", {flash['per_day'] / 1e6:,.0f} MB a day"
    each = "" if flash.get("per_sample") is None else f", {flash['per_sample']:,.0f} bytes a sample"
    return {"flash": f"{flash['written'] / 1e6:,.1f} MB written{day}{each}"}


def status_of(messages: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The status as far as a device's own messages tell it; None before they have told enough.

    Parameters
    ----------
    messages
        The newest of each topic below the device's own: `status`, `state/model`, `state/training`,
        `state/drift`, `state/buffer`, `metrics`.
    """
    needed = ("status", "state/model", "state/training", "state/buffer", "metrics")
    if any(name not in messages for name in needed):
        return None
    told, model, runs, buffer, metrics = (messages[name] for name in needed)
    online = told["state"] == "online"
    problem = metrics.get("problem") if online else None
    holding = {"ingest": buffer, "serving": model, "training": runs}
    host = metrics["host"]
    return {
        "state": "degraded" if problem else told["state"],
        "problem": problem,
        "on_hold": [name for name, state in holding.items() if state.get("on_hold")],
        "samples": metrics["ingest"]["samples"],
        "labels": metrics["labels"].get("count", 0),
        "quarantined": metrics["quarantine"],
        "evicted": metrics["buffer"]["evicted"],
        "model": {**model, "quality": metrics["live"]},
        "drift": messages.get("state/drift"),
        "training": {**runs, "progress": metrics["training"]["running"] if online else None},
        "stuck": metrics["ingest"].get("stuck"),
        "outbox": metrics["outbox"],
        "engine": runs["engine"],
        "host": host if online else {},
        "flash": metrics.get("flash") or {},
    }
