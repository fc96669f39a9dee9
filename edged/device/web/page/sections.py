"""The sections of the page as HTML, and the report made of them, each from one `Snapshot`.

All text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from edged.charts.figures import age, change, count, percent, plain, size
from edged.charts.html import document
from edged.device.reports import FlashPace
from edged.device.status_text import notes, summary
from edged.device.web.page.format import facts, meter, moment, table
from edged.device.web.page.forms import actions, alarms, evaluations, model_buttons, requests
from edged.device.web.page.history import Sensor
from edged.device.web.page.labels import sample_map, suspects
from edged.device.web.page.snapshot import Snapshot
from edged.device.web.page.timeline import NARROW, WIDE, measured, timeline
from edged.domain.events import CandidateRejected, Event, ModelPromoted
from edged.domain.text import happening, when
from edged.domain.training.trainer_messages import RunProgress
from edged.storage.models.records import ModelRecord

NEWEST = 12  # events that are shown at once
SENSORS = 40  # rows of the tables, silent and stuck ones first
STYLE = Path(__file__).with_name("static") / "page.css"
REPORTED = ("quality", "model", "training", "sensors", "storage", "events")


def health(view: Snapshot) -> str:
    """Return whether the device is healthy, its problems, and its paused parts."""
    troubles, paused = view.troubles, view.status.on_hold
    well = not troubles
    lines = [f'<p class="state {"well" if well else "ill"}">{"Healthy" if well else "Needs attention"}</p>']
    if troubles:
        lines.append("<ul>" + "".join(f"<li>{escape(trouble)}</li>" for trouble in troubles) + "</ul>")
    if paused:
        lines.append(f"<p>Paused by command: {escape(', '.join(paused))}</p>")
    lines += [f'<p class="note">{escape(note.capitalize())}.</p>' for note in notes(view.status)]
    broker = "connected" if view.connected else "not connected"
    up = age(view.status.uptime_s)
    lines.append(f"<p>Broker {broker} · up {up} · edged {escape(view.status.version)}</p>")
    return "".join(lines)


def learned(view: Snapshot) -> str:
    """Return what the newest labels did, in plain words, and what comes next; the numbers in details."""
    state, new = view.status.training, view.new_labelled
    text = _first_steps(view)
    if state.summary:
        text = f"{escape(state.summary)} {moment(state.summary_ts)}"
    ahead = ""
    if state.progress is not None:
        ahead = "Training is running."
    elif state.waiting_for:
        ahead = f"The next training is blocked by: {escape(', '.join(state.waiting_for))}."
    elif isfinite(view.needed) and (new or state.summary):
        enough = count(int(view.needed), f"new {view.material}")
        ahead = f"The next training starts with {enough}: {new:,} so far."
    numbers = next(filter(None, (_judged(said.event) for said in reversed(view.events))), {})
    return f"<p>{text}</p>" + (f"<p>{ahead}</p>" if ahead else "") + _numbers("learned", numbers)


def _judged(event: Event | None) -> Mapping[str, float]:
    """The figures of the verdict that an event tells of."""
    match event:
        case CandidateRejected(judged=judged):
            return judged.verdict.numbers
        case ModelPromoted(verdict=verdict) if verdict is not None:
            return verdict.numbers
    return {}


def _first_steps(view: Snapshot) -> str:
    """What a person can do on a device that has learned nothing yet."""
    if not view.counters.samples:
        return "No samples yet. Check that messages arrive on the topic of <code>stream.topic</code>."
    if view.material == "sample":
        return (
            "Nothing learned yet. This stream labels itself; training starts when enough samples are there."
        )
    if not view.counters.labels:
        return (
            "No labels yet, so nothing is learned. Send labels in the messages, with the command "
            "<code>label</code>, or answer label requests here."
        )
    return "Nothing learned yet."


def _numbers(name: str, numbers: Mapping[str, Any] | None) -> str:
    """Return the numbers behind a sentence, folded up."""
    if not numbers:
        return ""
    shown = {
        one.replace("_", " "): escape(plain(value))
        for one, value in numbers.items()
        if isinstance(value, int | float)
    }
    return f'<details id="{escape(name)}-numbers"><summary>Numbers</summary>{facts(shown)}</details>'


def model(view: Snapshot) -> str:
    """Return the current model with its lineage, and the list of models."""
    now = view.status.model
    line = " ← ".join(str(version) for version in view.lineage)
    live = _live(view)
    shown = {
        "Current model": f"<b>version {now.version}</b>{' (pinned)' if now.pinned else ''}",
        "Since": moment(now.since),
        "Live quality": f"{_formatter(view)(live)} over {count(view.quality.labelled, 'label')}",
        "Repeating the last value": _formatter(view)(view.quality.repeated),
        "Lineage": f"<span>{line}</span>",
    }
    if live is None:
        shown["Live quality"] = "after the next labels"
    if view.quality.repeated is None:
        del shown["Repeating the last value"]
    if now.missing is not None:
        shown["Untrained"] = f"{now.missing} so far"
    rows = [_model_row(view, record) for record in view.models]
    head = ("Version", "State", "Parent", "Created", "Gate result", "Actions")
    return facts(shown) + table(
        "Models, newest first",
        head,
        rows,
        ("", "", "wide", "wide", "", "" if view.may_control else "gone"),
    )


def _model_row(view: Snapshot, record: ModelRecord) -> tuple[str, ...]:
    state = "serving" if record.version == view.champion else record.status.replace("_", " ")
    parent = "–" if record.parent is None else f"{record.parent} ({escape(record.source)})"
    return (
        str(record.version),
        escape(state + (", pinned" if record.pinned else "")),
        escape(record.source) if record.parent is None else parent,
        moment(record.created),
        _verdict(record),
        model_buttons(view, record),
    )


def _verdict(record: ModelRecord) -> str:
    verdict = record.verdict
    if verdict is None:
        return "–"
    word, reasons = "Accepted" if verdict.accepted else "Rejected", "; ".join(verdict.reasons)
    text = escape(f"{word}: {reasons}" if reasons else word)
    return text + _numbers(f"verdict-{record.version}", verdict.numbers)


def quality(view: Snapshot) -> str:
    """Return live quality over time against the initial model, with drifts and promotions."""
    formatter = _formatter(view)
    points = measured(view.points)
    if not points:
        if view.schema.task != "classify":
            return "<p>Quality is measured once a trained model is in service.</p>"
        if view.counters.labels:
            return "<p>Quality is measured with each new label; the next one continues the chart.</p>"
        return "<p>No labels yet. Quality is measured with labels: the chart starts with the first one.</p>"
    _, live, frozen = points[-1]
    name = "accuracy" if view.schema.task == "classify" else "error"
    gain = ""
    if live is not None and frozen is not None:
        better = live - frozen if name == "accuracy" else frozen - live
        difference = change(name, abs(better)).removeprefix("+")
        gain = f" ({difference} {'better' if better >= 0 else 'worse'})"
    legend = (
        '<ul class="legend"><li class="live">Current model</li><li class="frozen">Initial model</li>'
        '<li class="drift">Drift</li><li class="swap">Promotion</li><li class="back">Rollback</li></ul>'
    )
    lead = f"<p>{name.capitalize()} <b>{formatter(live)}</b>"
    lead += "" if frozen is None else f"; <b>{formatter(frozen)}</b> without learning{gain}"
    if _live(view) is None:
        lead += ", before the restart"
    pictures = "".join(timeline(points, view.marks, view.now, formatter, shape) for shape in (WIDE, NARROW))
    return f"{lead}.</p>{pictures}{legend}"


def stretches(view: Snapshot) -> str:
    """Return the place of the timeline, which scripts fill; it never changes, so no refresh empties it."""
    rights = "label " * view.may_label + "control" * view.may_control
    return (
        f'<div id="teach" data-task="{view.schema.task}" data-rights="{rights}">'
        "<p>The timeline needs JavaScript.</p></div>"
    )


def training(view: Snapshot) -> str:
    """Return the present training run, and recent runs."""
    state = view.status.training
    shown = {
        "Runs": f"{state.runs:,}",
        "New labels": f"{view.new_labelled:,}",
        "Engine": escape(view.status.engine),
    }
    if state.waiting_for:
        shown["Blocked by"] = escape(", ".join(state.waiting_for))
    rows = [
        (str(r.id), escape(r.trigger), escape((r.outcome or "running").replace("_", " ")), moment(r.ended))
        for r in view.runs
    ]
    head = ("Run", "Trigger", "Outcome", "Ended")
    return _progress(state.progress) + facts(shown) + (
        table("Recent runs", head, rows, ("", "", "", "wide")) if rows else ""
    )  # fmt: skip


def _progress(progress: RunProgress | None) -> str:
    if progress is None:
        return "<p>No training in progress.</p>"
    step, steps = progress.step, progress.steps
    if not steps:
        return f"<p>Starting run {progress.run}…</p>"
    loss = "" if progress.loss is None else f", loss {plain(progress.loss)}"
    return (
        f'<p>Step {step:,} of {steps:,}{loss} <progress aria-label="Training" value="{step}" max="{steps}">'
        f"{step}/{steps}</progress></p>"
    )


def predictions(view: Snapshot) -> str:
    """Return the latest prediction of each key."""
    rows = []
    for key, sensor in sorted(view.sensors.items())[:SENSORS]:
        rows.append((escape(key), _said(view, sensor), percent(sensor.confidence), moment(sensor.ts),
                     str(sensor.version)))  # fmt: skip
    if not rows:
        return "<p>No predictions since startup.</p>"
    head = ("Key", "Prediction", "Confidence", "Sample time", "Version")
    columns = ("", "", "" if view.schema.task == "classify" else "gone", "wide", "wide")
    return table("Latest prediction per key", head, rows, columns) + _more(view)


def _said(view: Snapshot, sensor: Sensor) -> str:
    if view.schema.task == "classify":
        said = [sensor.label] if sensor.choices is None else sensor.choices
        none = "No prediction" if sensor.label is None else "Too uncertain"
        return escape(" or ".join([view.schema.classes[at] for at in said if at is not None])) or none
    if view.schema.labels_itself:
        return f"score {plain(sensor.output[0])}"
    units = view.schema.target_units or ("",) * len(sensor.output)
    return escape(
        ", ".join(f"{plain(v)} {unit}".strip() for v, unit in zip(sensor.output, units, strict=False))
    )


def _more(view: Snapshot) -> str:
    hidden = max(0, len(view.sensors) - SENSORS) + view.forgotten
    return f"<p>{hidden:,} more keys not shown.</p>" if hidden else ""


def sensors(view: Snapshot) -> str:
    """Return silent, stuck and other keys, and the quarantined messages by reason."""
    silent = set(view.silent)

    def pressing(item: tuple[str, Sensor]) -> tuple[bool, bool, int, str]:
        return item[0] not in silent, item[0] not in view.stuck, -item[1].gaps, item[0]

    rows = []
    for key, sensor in sorted(view.sensors.items(), key=pressing)[:SENSORS]:
        if key in silent:
            state = f'<strong class="ill">Silent for {age(view.monotonic - sensor.heard)}</strong>'
        elif key in view.stuck:
            state = f'<strong class="ill">Stuck: {escape(", ".join(view.stuck[key][:4]))}</strong>'
        else:
            state = "OK"
        pause = "–" if sensor.pause is None else age(sensor.pause)
        rows.append((escape(key), state, str(sensor.gaps), pause, f"{sensor.count:,}"))
    head = ("Key", "State", "Gaps", "Interval", "Samples")
    listed = table("Since startup", head, rows, ("", "", "", "wide", "wide")) if rows else ""
    refused = ", ".join(f"{escape(reason)} {count:,}" for reason, count in sorted(view.refused.items()))
    return listed + _more(view) + facts({"Quarantined": refused or "None"})


def storage(view: Snapshot) -> str:
    """Return the sizes of the sample log and the outbox, and the free disk space."""
    counters, outbox = view.counters, view.status.outbox
    waiting = f"{outbox.pending:,} ({size(outbox.bytes)}), {outbox.dropped:,} dropped"
    full = meter("Sample log", counters.bytes, view.limit, f"{size(counters.bytes)} of {size(view.limit)}")
    return facts(
        {
            "Samples": f"{counters.samples:,} received, {counters.rows:,} stored, "
            f"{counters.evicted:,} evicted",
            "Labels": f"{counters.labels:,} ({percent(view.label_share)})",
            "Sample log": full,
            "Outbox": waiting,
            "Free disk space": size(view.vitals.disk_free_bytes),
            "Flash writes": _flash(view.status.flash),
        }
    )


def _flash(flash: FlashPace | None) -> str:
    if flash is None or flash.written is None:
        return "Not available"
    day = "since startup" if flash.per_day is None else f"since startup, {size(flash.per_day)} per day"
    return f"{size(flash.written)} {day}"


def host(view: Snapshot) -> str:
    """Return temperature, load and memory, with drift and board from `edged status`."""
    vitals = view.vitals
    heat = "Not available" if vitals.temperature_c is None else f"{vitals.temperature_c:.0f} °C"
    own = {"Temperature": heat, "Load": plain(vitals.load1), "Memory": size(vitals.rss_bytes)}
    rest = {
        name.capitalize(): escape(value)
        for name, value in summary(view.status).items()
        if name in ("drift", "board")
    }
    return facts(own | rest)


def events(view: Snapshot) -> str:
    """Return the events, newest first."""
    told = [(said.ts, happening(said.to_json())) for said in reversed(view.events)]
    lines = [f"<li>{moment(ts)} {escape(text)}</li>" for ts, text in told]
    if not lines:
        return "<p>No events yet.</p>"
    newest, earlier = "".join(lines[:NEWEST]), "".join(lines[NEWEST:])
    more = '<details id="events-earlier"><summary>Older events</summary>' if earlier else ""
    more += f'<ol class="events">{earlier}</ol></details>' if earlier else ""
    return f'<ol class="events">{newest}</ol>{more}'


def _live(view: Snapshot) -> float | None:
    return view.quality.mean


def _formatter(view: Snapshot) -> Callable[[float | None], str]:
    return percent if view.schema.task == "classify" else plain


SECTIONS: dict[str, tuple[str, Callable[[Snapshot], str]]] = {
    "health": ("Health", health),
    "learned": ("What was learned", learned),
    "actions": ("Controls", actions),
    "quality": ("Quality over time", quality),
    "timeline": ("Timeline", stretches),
    "requests": ("Label requests", requests),
    "suspects": ("Labels to check", suspects),
    "map": ("Map of the samples", sample_map),
    "alarms": ("Alarms", alarms),
    "model": ("Model", model),
    "training": ("Training", training),
    "predictions": ("Predictions", predictions),
    "sensors": ("Sensors", sensors),
    "storage": ("Storage", storage),
    "host": ("Host", host),
    "events": ("Events", events),
}
"""By id: heading, and the function that writes the content. A section without content is hidden."""


def report(view: Snapshot) -> str:
    """Return the report of the device as one HTML file, without controls."""
    view = replace(view, may_label=False, may_control=False)
    lines = {name: escape(line) for name, line in summary(view.status).items()}
    parts = [f"<p>As of {when(view.now)}.</p>", facts(lines)]
    judged = evaluations(view) or "<p>None since startup (command evaluate).</p>"
    parts.append(f"<h2>Holdout evaluations</h2>{judged}")
    parts += [f"<h2>{escape(SECTIONS[name][0])}</h2>{SECTIONS[name][1](view)}" for name in REPORTED]
    return document(f"edged on {view.device}", "".join(parts), STYLE.read_text(encoding="utf-8"))
