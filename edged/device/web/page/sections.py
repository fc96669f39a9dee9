"""The sections of the page as HTML, and the report made of them, each from one `Snapshot`.

All text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edged.charts.html import document, percent, plain
from edged.device.web.page.format import age, facts, meter, moment, size, table
from edged.device.web.page.forms import actions, alarms, evaluations, model_buttons, requests
from edged.device.web.page.timeline import NARROW, WIDE, timeline
from edged.domain.text import happening, summary, when

if TYPE_CHECKING:
    from edged.device.web.page.history import Sensor
    from edged.device.web.page.snapshot import Snapshot
    from edged.storage.models.registry import ModelRecord

NEWEST = 12  # events that are shown at once
SENSORS = 40  # rows of the tables, silent and stuck ones first
STYLE = Path(__file__).with_name("static") / "page.css"
REPORTED = ("quality", "model", "training", "sensors", "storage", "events")


def health(view: Snapshot) -> str:
    """Return whether the device is healthy, its problems, and its paused parts."""
    troubles, resting = view.troubles, view.status["on_hold"]
    well = not troubles
    lines = [f'<p class="state {"well" if well else "ill"}">{"Healthy" if well else "Needs attention"}</p>']
    if troubles:
        lines.append("<ul>" + "".join(f"<li>{escape(trouble)}</li>" for trouble in troubles) + "</ul>")
    if resting:
        lines.append(f"<p>Paused by command: {escape(', '.join(resting))}</p>")
    broker = "connected" if view.connected else "not connected"
    up = age(view.status["uptime_s"])
    lines.append(f"<p>Broker {broker} · up {up} · edged {escape(view.status['version'])}</p>")
    return "".join(lines)


def model(view: Snapshot) -> str:
    """Return the current model with its lineage, and the list of models."""
    now = view.status["model"]
    line = " ← ".join(str(version) for version in view.lineage)
    told = {
        "Serving": f"<b>version {now['version']}</b>{' (pinned)' if now['pinned'] else ''}",
        "Since": moment(now["since"]),
        "Live quality": f"{_tell(view)(_live(view))}, {now['quality']['labelled']:,} labelled",
        "Repeating the last value": _tell(view)(now["quality"].get("repeated")),
        "Lineage": f"<span>{line}</span>",
    }
    if now["missing"] is not None:
        told["Untrained"] = f"{now['missing']} there"
    rows = [_model_row(view, record) for record in view.models]
    head = ("Version", "State", "From", "Made", "Verdict", "Steer")
    return facts(told) + table(
        "Models, newest first",
        head,
        rows,
        ("", "", "wide", "wide", "wide", "" if view.may_control else "gone"),
    )


def _model_row(view: Snapshot, record: ModelRecord) -> tuple[str, ...]:
    state = "serves" if record.version == view.champion else record.status.replace("_", " ")
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
    if record.verdict is None:
        return "–"
    word = "accepted" if record.verdict.get("accepted") else "refused"
    reasons = "; ".join(map(str, record.verdict.get("reasons", ())))
    return escape(f"{word}: {reasons}" if reasons else word)


def quality(view: Snapshot) -> str:
    """Return live quality over time against the initial model, with drifts and promotions."""
    tell = _tell(view)
    if not any(live is not None for _, live, _ in view.points):
        return "<p>No label has come yet: quality is measured with labels.</p>"
    _, live, frozen = view.points[-1]
    name = "accuracy" if view.schema.task == "classify" else "error"
    gain = ""
    if live is not None and frozen is not None:
        better = live - frozen if name == "accuracy" else frozen - live
        told = f"{100 * abs(better):.1f} points" if name == "accuracy" else plain(abs(better))
        gain = f" ({told} {'better' if better >= 0 else 'worse'})"
    legend = (
        '<ul class="legend"><li class="live">the model that serves</li>'
        '<li class="frozen">the first model, never updated</li>'
        '<li class="drift">drift</li><li class="swap">new model</li><li class="back">rolled back</li></ul>'
    )
    lead = f"<p>{name.capitalize()} <b>{tell(live)}</b>"
    lead += "" if frozen is None else f"; without learning it would be <b>{tell(frozen)}</b>{gain}"
    pictures = "".join(timeline(view.points, view.marks, view.now, tell, size) for size in (WIDE, NARROW))
    return f"{lead}.</p>{pictures}{legend}" + _in_words(view, tell)


def stretches(view: Snapshot) -> str:
    """Return the place of the timeline, which scripts fill; it never changes, so no refresh empties it."""
    rights = "label " * view.may_label + "control" * view.may_control
    return (
        f'<div id="teach" data-task="{view.schema.task}" data-rights="{rights}">'
        "<p>The timeline needs JavaScript.</p></div>"
    )


def _in_words(view: Snapshot, tell: Callable[[float | None], str]) -> str:
    """Return the chart as a table, for screen readers."""
    points = view.points[:: max(1, len(view.points) // 10)]
    rows = [(moment(ts), tell(live), tell(frozen)) for ts, live, frozen in points]
    marks = "".join(f"<li>{moment(ts)} {escape(text)}</li>" for ts, _, text in reversed(view.marks))
    return (
        '<details id="quality-words"><summary>In words</summary>'
        + table("Quality over time", ("When", "Serving", "First model"), rows)
        + (f"<ul>{marks}</ul>" if marks else "")
        + "</details>"
    )


def training(view: Snapshot) -> str:
    """Return the present training run, and recent runs."""
    state = view.status["training"]
    told = {
        "Runs": f"{state['runs']:,}",
        "New labels": f"{view.new_labelled:,}",
        "Engine": escape(str(view.status["engine"] or "–")),
    }
    if state["waiting_for"]:
        told["Waiting for"] = escape(", ".join(state["waiting_for"]))
    rows = [
        (str(r.id), escape(r.trigger), escape(r.outcome or "under way"), moment(r.ended)) for r in view.runs
    ]
    head = ("Run", "Why", "Outcome", "Ended")
    return _progress(state["progress"]) + facts(told) + (
        table("Newest runs", head, rows, ("", "", "", "wide")) if rows else ""
    )  # fmt: skip


def _progress(progress: dict[str, Any] | None) -> str:
    if progress is None:
        return "<p>No run is under way.</p>"
    step, steps = progress["step"], progress.get("steps")
    if not steps:
        return f"<p>Run {progress.get('run', '')} begins …</p>"
    loss = "" if progress.get("loss") is None else f", loss {plain(progress['loss'])}"
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
        return "<p>Nothing was predicted since the start.</p>"
    head = ("Key", "Prediction", "Sure", "Sample of", "Version")
    columns = ("", "", "" if view.schema.task == "classify" else "gone", "wide", "wide")
    return table("Newest prediction of each key", head, rows, columns) + _more(view)


def _said(view: Snapshot, sensor: Sensor) -> str:
    if view.schema.task == "classify":
        said = [sensor.label] if sensor.choices is None else sensor.choices
        return escape(" or ".join([view.schema.classes[at] for at in said if at is not None])) or "no answer"
    if view.schema.labels_itself:
        return f"score {plain(sensor.output[0])}"
    units = view.schema.target_units or ("",) * len(sensor.output)
    return escape(
        ", ".join(f"{plain(v)} {unit}".strip() for v, unit in zip(sensor.output, units, strict=False))
    )


def _more(view: Snapshot) -> str:
    hidden = max(0, len(view.sensors) - SENSORS) + view.forgotten
    return f"<p>{hidden:,} further keys are not shown.</p>" if hidden else ""


def sensors(view: Snapshot) -> str:
    """Return silent, stuck and other keys, and the quarantined messages by reason."""
    silent = set(view.silent)

    def pressing(item: tuple[str, Sensor]) -> tuple[bool, bool, int, str]:
        return item[0] not in silent, item[0] not in view.stuck, -item[1].gaps, item[0]

    rows = []
    for key, sensor in sorted(view.sensors.items(), key=pressing)[:SENSORS]:
        if key in silent:
            state = f'<strong class="ill">silent for {age(view.monotonic - sensor.heard)}</strong>'
        elif key in view.stuck:
            state = f'<strong class="ill">stands still: {escape(", ".join(view.stuck[key][:4]))}</strong>'
        else:
            state = "well"
        pause = "–" if sensor.pause is None else age(sensor.pause)
        rows.append((escape(key), state, str(sensor.gaps), pause, f"{sensor.count:,}"))
    head = ("Key", "State", "Gaps", "Every", "Samples")
    told = table("Since the start", head, rows, ("", "", "", "wide", "wide")) if rows else ""
    refused = ", ".join(f"{escape(reason)} {count:,}" for reason, count in sorted(view.refused.items()))
    return told + _more(view) + facts({"Quarantined": refused or "nothing"})


def storage(view: Snapshot) -> str:
    """Return the sizes of the sample log and the outbox, and the free disk space."""
    counters, outbox = view.counters, view.status["outbox"]
    waiting = f"{outbox['pending']:,} ({size(outbox['bytes'])}), {outbox['dropped']:,} dropped"
    full = meter("Sample log", counters.bytes, view.limit, f"{size(counters.bytes)} of {size(view.limit)}")
    flash = view.status["flash"]
    return facts(
        {
            "Samples": f"{counters.samples:,} accepted, {counters.rows:,} kept, {counters.evicted:,} evicted",
            "Labels": f"{counters.labels:,} ({percent(view.label_share)})",
            "Sample log": full,
            "Waiting for the broker": waiting,
            "Disk free": size(view.vitals.disk_free_bytes),
            "Written": f"{size(flash['written'])}, {size(flash['per_day'])} a day",
        }
    )


def host(view: Snapshot) -> str:
    """Return temperature, load and memory, with drift and board from `edged status`."""
    vitals = view.vitals
    heat = "not told" if vitals.temperature_c is None else f"{vitals.temperature_c:.0f} °C"
    own = {"Temperature": heat, "Load": plain(vitals.load1), "Memory": size(vitals.rss_bytes)}
    rest = {
        name.capitalize(): escape(told)
        for name, told in summary(view.status).items()
        if name in ("drift", "board")
    }
    return facts(own | rest)


def events(view: Snapshot) -> str:
    """Return the events, newest first."""
    lines = [f"<li>{moment(said['ts'])} {escape(happening(said))}</li>" for said in reversed(view.events)]
    if not lines:
        return "<p>Nothing yet.</p>"
    newest, earlier = "".join(lines[:NEWEST]), "".join(lines[NEWEST:])
    more = '<details id="events-earlier"><summary>Earlier</summary>' if earlier else ""
    more += f'<ol class="events">{earlier}</ol></details>' if earlier else ""
    return f'<ol class="events">{newest}</ol>{more}'


def _live(view: Snapshot) -> float | None:
    live: dict[str, float | None] = view.status["model"]["quality"]
    return live.get("accuracy", live.get("error"))


def _tell(view: Snapshot) -> Callable[[float | None], str]:
    return percent if view.schema.task == "classify" else plain


SECTIONS: dict[str, tuple[str, Callable[[Snapshot], str]]] = {
    "health": ("Health", health),
    "actions": ("Steer", actions),
    "quality": ("Quality over time", quality),
    "timeline": ("Timeline", stretches),
    "requests": ("Labels wanted", requests),
    "alarms": ("Alarms", alarms),
    "model": ("Model", model),
    "training": ("Training", training),
    "predictions": ("Predictions", predictions),
    "sensors": ("Sensors", sensors),
    "storage": ("Buffer and disk", storage),
    "host": ("Machine", host),
    "events": ("Events", events),
}
"""By id: heading, and the function that writes the content. A section without content is hidden."""


def report(view: Snapshot) -> str:
    """Return the report of the device as one HTML file, without controls."""
    view = replace(view, may_label=False, may_control=False)
    told = {name: escape(line) for name, line in summary(view.status).items()}
    parts = [f"<p>As of {when(view.now)}.</p>", facts(told)]
    judged = evaluations(view) or "<p>Nobody has asked for one since the start (command evaluate).</p>"
    parts.append(f"<h2>Evaluations on samples kept for judging</h2>{judged}")
    parts += [f"<h2>{escape(SECTIONS[name][0])}</h2>{SECTIONS[name][1](view)}" for name in REPORTED]
    return document(f"edged on {view.device}", "".join(parts), STYLE.read_text(encoding="utf-8"))
