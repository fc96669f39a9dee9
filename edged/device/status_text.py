"""How a device is doing, in lines for people: the same in `edged status`, `ctl watch` and on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edged.charts.figures import NONE, count, figure, plain, size
from edged.device.reports import (
    DriftStatus,
    FlashPace,
    LastRun,
    LocalStatus,
    ModelStatus,
    StreamStatus,
    TrainingStatus,
)
from edged.domain.commands.rules import CLOCK_SET
from edged.domain.judging.metrics import QualityFigures
from edged.domain.text import repeating_wins, when
from edged.domain.training.trainer_messages import RunProgress
from edged.host.vitals import BoardVitals
from edged.storage.journal.journal import RunRecord

TROUBLES = {"throttled": "CPU throttled", "under_voltage": "undervoltage", "on_battery": "on battery"}
ENOUGH_LABELS = 100  # for live quality to be compared


def summary(status: StreamStatus) -> dict[str, str]:
    """What there is to tell, by name; times are of this machine's zone."""
    pid = status.pid if isinstance(status, LocalStatus) else None
    lines = {"state": status.state + (f" (pid {pid})" if pid else "")}
    if troubles := attention(status):
        lines["attention"] = "; ".join(troubles)
    if remarks := notes(status):
        lines["note"] = "; ".join(remarks)
    lines |= {
        "paused": ", ".join(status.on_hold) or NONE,
        "model": _model(status.model),
        "live quality": quality(status.model.quality),
        "learned": learned(status.training),
        "drift": drift(status.drift),
        "training": training(status.training),
    }
    if status.training.last is not None:
        lines["last run"] = last_run(status.training.last)
    lines |= {
        "engine": status.engine or NONE,
        "samples": f"{status.samples:,} received, {status.evicted:,} evicted",
        "labels": f"{status.labels:,}",
        "quarantined": f"{status.quarantined:,}",
        "outbox": f"{status.outbox.pending:,} waiting, {status.outbox.dropped:,} dropped",
    }
    if status.audit is not None:
        lines["audit"] = f"{status.audit.seq}:{status.audit.hash}"
    return lines | _hardware(status.host) | _wear(status.flash)


def attention(status: StreamStatus) -> list[str]:
    """What keeps the device from being well, most pressing first; nothing where all is well.

    >>> attention(StreamStatus.from_json({"problem": None, "stuck": 2, "host": {"throttled": True}}))
    ['2 features stuck', 'CPU throttled']
    >>> model = {"quality": {"accuracy": 0.8, "labelled": 100, "repeated": 0.9}}
    >>> attention(StreamStatus.from_json({"model": model}))
    ['repeating the last known value is better than the model: accuracy 90.0 %, with the model 80.0 %']
    >>> few = {"quality": {"error": 0.1, "labelled": 99, "repeated": 0.05}}
    >>> attention(StreamStatus.from_json({"model": few}))
    []
    """
    found = [status.problem] if status.problem else []
    if paused := status.training.paused:
        found.append(f"training paused: {paused.reason} ({paused.remedy})")
    if status.stuck:
        found.append(f"{count(status.stuck, 'feature')} stuck")
    live, host = status.model.quality, status.host
    if live is not None and live.labelled >= ENOUGH_LABELS:
        found += filter(None, [repeating_wins(live.name, live.mean, live.repeated)])
    found += [text for name, text in TROUBLES.items() if getattr(host, name, None)]
    if host is not None and host.clock_synchronised is False and _unset(status.ts):
        found.append("the clock was not set since the device was switched on")
    return found


def notes(status: StreamStatus) -> list[str]:
    """What is worth knowing, but needs nobody's attention.

    >>> notes(StreamStatus.from_json({"ts": 1.8e9, "host": {"clock_synchronised": False}}))
    ['clock not synchronised: no time server found']
    """
    host = status.host
    if host is not None and host.clock_synchronised is False and not _unset(status.ts):
        return ["clock not synchronised: no time server found"]
    return []


def _unset(ts: float | None) -> bool:
    return ts is not None and ts < CLOCK_SET


def quality(live: QualityFigures | None) -> str:
    """Live quality and how many labelled predictions it rests on.

    >>> from edged.domain.judging.metrics import QualityFigures
    >>> quality(QualityFigures(0.9, 12345, repeated=0.5, of_classes=True))
    'accuracy 90.0 % over 12,345 labels; repeating the last value 50.0 %'
    """
    figures = {} if live is None else {live.name: live.mean, "coverage": live.coverage}
    parts = [f"{name} {figure(name, value)}" for name, value in figures.items() if value is not None]
    if live is None or not parts:
        return NONE
    again = live.repeated
    beside = "" if again is None else f"; repeating the last value {figure(live.name, again)}"
    return f"{', '.join(parts)} over {count(live.labelled, 'label')}{beside}"


def learned(state: TrainingStatus) -> str:
    """Say what the newest labels did, and when."""
    if not state.summary:
        return "nothing yet: training starts when enough labels have arrived"
    return f"{state.summary} ({when(state.summary_ts)})"


def drift(state: DriftStatus | None) -> str:
    """How many signals there were, and the newest.

    >>> from edged.device.reports import DriftStatus
    >>> from edged.domain.drift.signals import DriftSignal, Level
    >>> drift(DriftStatus(2, DriftSignal(Level.DRIFT, "ddm", "error", 0.5, 0.25, 4711)))
    '2 signals, latest: drift in error at sample 4,711'
    """
    if state is None or not state.signals:
        return "none"
    last, text = state.last, count(state.signals, "signal")
    if last is None:
        return text
    return f"{text}, latest: {last.level.name.lower()} in {last.source} at sample {last.offset:,}"


def training(state: TrainingStatus) -> str:
    """How many runs there were, how far the present one is, and what a wanted one waits for."""
    text = count(state.runs, "run")
    if state.progress is not None:
        text += f", running: {steps(state.progress)}"
    elif state.waiting_for:
        text += f", blocked by {', '.join(state.waiting_for)}"
    return text


def steps(progress: RunProgress) -> str:
    """How far a run is.

    >>> from edged.domain.training.trainer_messages import RunProgress
    >>> steps(RunProgress(3, 40, 200, 0.5))
    'run 3, step 40 of 200, loss 0.5'
    """
    of = "" if progress.steps is None else f" of {progress.steps}"
    loss = "" if progress.loss is None else f", loss {plain(progress.loss)}"
    return f"run {progress.run}, step {progress.step}{of}{loss}"


def last_run(run: LastRun | RunRecord) -> str:
    """The newest run and what came of it."""
    text = f"{run.run if isinstance(run, LastRun) else run.id} ({run.trigger})"
    return f"{text}: {run.outcome} at {when(run.ended)}" if run.ended else f"{text}: running"


def _model(model: ModelStatus) -> str:
    if model.version is None:
        return "none yet"
    text = f"version {model.version} since {when(model.since)}"
    if model.parent is not None:
        text += f", parent {model.parent}"
    if model.missing:
        text += f", untrained: {model.missing}"
    return text + (", pinned" if model.pinned else "")


def _hardware(host: BoardVitals | None) -> dict[str, str]:
    """Heat and power, as far as the machine tells."""
    if host is None:
        return {}
    rows = {}
    if host.temperature_c is not None:
        rows["temperature"] = f"{host.temperature_c:.0f} °C"
    if any(getattr(host, name) is not None for name in (*TROUBLES, "power_mode")):
        found = [text for name, text in TROUBLES.items() if getattr(host, name)] or ["OK"]
        found += [f"power mode {host.power_mode}"] if host.power_mode else []
        rows["board"] = ", ".join(found)
    return rows


def _wear(flash: FlashPace | None) -> dict[str, str]:
    if flash is None or flash.written is None:
        return {}
    day = " since startup" if flash.per_day is None else f", {size(flash.per_day)} per day"
    each = "" if flash.per_sample is None else f", {size(flash.per_sample)} per sample"
    return {"flash": f"{size(flash.written)} written{day}{each}"}


def status_of(messages: Mapping[str, Mapping[str, Any]]) -> StreamStatus | None:
    """The status as far as a device's own messages tell it; None before they have told enough.

    `messages` are the newest of each topic below the device's own: `status`, `state/model`,
    `state/training`, `state/drift`, `metrics`.
    """
    needed = ("status", "state/model", "state/training", "metrics")
    if any(name not in messages for name in needed):
        return None
    status, model, runs, metrics = (messages[name] for name in needed)
    online = status["state"] == "online"
    problem = metrics.get("problem") if online else None
    holding = {"serving": model, "training": runs}
    told = {
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
        "host": metrics["host"] if online else None,
        "flash": metrics.get("flash"),
    }
    return StreamStatus.from_json(told)
