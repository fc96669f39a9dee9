"""Controls of the page: buttons that send a command after a confirmation, and label requests."""

from __future__ import annotations

from html import escape

from edged.charts.figures import count, figure, percent, plain
from edged.device.web.page.format import button, moment
from edged.device.web.page.snapshot import PAUSABLE, Snapshot
from edged.domain.events import LabelRequested
from edged.storage.models.records import ModelRecord

REQUESTS = 5  # shown at once
BUTTONS = 8  # classes that get a button each; more are chosen from a list
GOOD = ("good", "retired", "champion")
NAMES = {"training": "training", "serving": "publishing predictions"}


def actions(view: Snapshot) -> str:
    """Return the buttons to train, pause, roll back and evaluate."""
    report = '<a class="button" href="api/report" download>Download report</a>'
    if not view.may_control:
        return (
            "<p>Read-only. To train, pause or roll back, log in with a code from <code>edged web pair"
            " --control CONFIG</code>.</p>"
            f"<p>{report}</p>"
        )
    line = [
        button("Train now", "Start training and ignore all guards?", "train", {}),
        *(_pause(view, part) for part in PAUSABLE),
    ]
    previous = next((r.previous for r in view.reigns if r.version == view.champion), None)
    if previous is not None:
        ask = f"Roll back to {previous}? Version {view.champion} will be marked as rejected."
        line.append(button(f"Roll back to {previous}", ask, "rollback", {}))
    if view.status.model.pinned:
        ask = f"Unpin version {view.champion}? New models can replace it."
        line.append(button("Unpin", ask, "unpin", {}))
    judge = "Evaluate the current model on holdout samples?"
    line.append(button("Evaluate", judge, "evaluate", {}))
    return f'<div class="buttons">{"".join(line)}{report}</div>' + evaluations(view)


def evaluations(view: Snapshot) -> str:
    """Return the results of evaluations, newest first."""
    lines = []
    for said in reversed(view.evaluations):
        found = ", ".join(
            f"{escape(name.replace('_', ' '))} {figure(name, value)}"
            for name, value in said["figures"].items()
        )
        lines.append(f"<li>Version {said['version']} on {said['rows']:,} samples: {found}</li>")
    return f'<ul class="evaluations">{"".join(lines)}</ul>' if lines else ""


def _pause(view: Snapshot, part: str) -> str:
    name = NAMES[part]
    if part in view.status.on_hold:
        return button(f"Resume {part}", f"Resume {name}?", "resume", {"what": part})
    return button(f"Pause {part}", f"Pause {name}? It stays paused across restarts.", "pause", {"what": part})


def model_buttons(view: Snapshot, record: ModelRecord) -> str:
    """Return the buttons of one model."""
    if not view.may_control:
        return ""
    version, serves, line = record.version, record.version == view.champion, []
    if not serves and record.status in GOOD:
        ask = f"Roll back to {version}? Version {view.champion} will be marked as rejected."
        line.append(
            button(
                "Roll back", ask, "rollback", {"version": version}, about=f"Roll back to version {version}"
            )
        )
    if not record.pinned and (serves or record.status in GOOD):
        ask = f"Pin version {version} until you unpin it?"
        line.append(button("Pin", ask, "pin", {"version": version}, about=f"Pin version {version}"))
    return " ".join(line)


def requests(view: Snapshot) -> str:
    """Return the label requests, those first of which the model is least sure, each with its choices."""
    first = view.requests[:REQUESTS]
    more = len(view.requests) - len(first)
    rest = f"<p>{more:,} more.</p>" if more else ""
    return "".join(_request(view, said) for said in first) + rest


def _request(view: Snapshot, said: LabelRequested) -> str:
    names = view.schema.names or tuple(str(i) for i in range(len(said.values)))
    values = ", ".join(f"{n} {plain(v)}" for n, v in zip(names, said.values, strict=False))
    sure = "" if said.confidence is None else f" ({percent(said.confidence)})"
    answer = said.answer if isinstance(said.answer, str) else ", ".join(map(plain, said.answer))
    text = f"{moment(said.sample_ts)} <b>{escape(said.key)}</b>: {escape(values)}."
    text += f" Predicted: {escape(answer)}{sure}."
    text += " Drawn at random, so that labels that judge models are like the stream." * said.random
    return f'<div class="request"><p>{text}</p>{_answers(view, said) if view.may_label else ""}</div>'


def _answers(view: Snapshot, said: LabelRequested) -> str:
    sample, classes = said.id, view.schema.known_classes
    if classes and len(classes) <= BUTTONS:
        return '<div class="buttons">' + "".join(
            button(name, f"Label sample {sample} of {said.key} as {name}?", "label",
                   {"id": sample, "label": name}, about=f"{name}, sample {sample}")
            for name in classes
        ) + "</div>"  # fmt: skip
    field = f"label-{escape(sample)}"
    if classes:
        options = "".join(f"<option>{escape(name)}</option>" for name in classes)
        entry = f'<select id="{field}" name="label">{options}</select>'
    elif view.schema.targets == 1:
        entry = f'<input id="{field}" name="label" type="number" step="any" required>'
    else:
        return "<p>Multi-value label: use the <code>label</code> command.</p>"
    return (
        f'<form data-command="label" data-sample="{escape(sample)}"><label for="{field}">Label for sample'
        f" {escape(sample)}</label> {entry} <button>Submit label</button></form>"
    )


def alarms(view: Snapshot) -> str:
    """Return the active anomaly alarms; empty for a stream without anomaly detection."""
    if view.anomaly is None:
        return ""
    threshold = view.anomaly.threshold
    text = f"<p>{count(view.anomaly.alarms, 'alarm')}, {view.anomaly.flagged:,} samples excluded; "
    text += "calibrating threshold.</p>" if threshold is None else f"threshold {plain(threshold)}.</p>"
    for key in view.anomaly.standing:
        ask = f"Mark {key} as normal and learn from it?"
        accept = button("Mark as normal", ask, "accept", {"key": key}, about=f"Mark {key} as normal")
        text += f'<p><strong class="ill">{escape(key)}</strong> {accept if view.may_control else ""}</p>'
    return text
