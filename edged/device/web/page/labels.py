"""Sections of the page about labels that may be wrong: those to check, and the map of the samples."""

from __future__ import annotations

from html import escape

from edged.charts.figures import plain
from edged.device.learning.label_reviews import CheckedLabel
from edged.device.web.page.format import moment, table
from edged.device.web.page.snapshot import Snapshot
from edged.domain.stream.schema import Schema

SHOWN = 20  # labels at once
VALUES = 8  # features shown of a sample


def suspects(view: Snapshot) -> str:
    """Return the labels to check, with checkboxes for whoever may label; empty before the first review."""
    ts, labels, found = view.suspects
    if ts is None:
        return ""
    about = f"<p>Reviewed {moment(ts)}: {labels:,} labels, each by a model that had not seen it."
    if not found:
        return f"{about} None of those left contradicts it.</p>"
    about += " It contradicts these.</p>"
    rows = [_row(view, one) for one in found[:SHOWN]]
    listed = table("The most suspect first", ("Sample", "Key and values", "Label", "Model says"), rows)
    more = "<p>More follow when these are done.</p>" if len(found) > SHOWN else ""
    return about + (_controls(view.schema) if view.may_label else "") + listed + more


def _row(view: Snapshot, one: CheckedLabel) -> tuple[str, str, str, str]:
    schema, sample, answer = view.schema, one.sample, view.schema.classes[one.suspect.answer]
    when, label = moment(sample.ts), escape(schema.classes[sample.label or 0])
    if view.may_label:
        when = (
            f'<label><input type="checkbox" name="suspect" id="suspect-{sample.offset}"'
            f' value="{escape(one.id)}" data-answer="{escape(answer)}"> {when}</label>'
        )
    names = schema.names or tuple(map(str, range(schema.measured)))
    values = [f"{n} {plain(v)}" for n, v in zip(names[:VALUES], sample.x.tolist(), strict=False)]
    values += ["…"] * (len(names) > VALUES)
    key = f"<b>{escape(sample.key)}</b> <small>{escape(', '.join(values))}</small>"
    return when, key, label, f"{escape(answer)}, {100 * one.suspect.confidence:.0f}&nbsp;% sure"


def _controls(schema: Schema) -> str:
    options = "".join(f"<option>{escape(name)}</option>" for name in schema.known_classes)
    return (
        '<div class="buttons check"><label><input type="checkbox" id="suspects-all"> All</label>'
        '<button type="button" id="suspects-right" disabled>The label is right</button>'
        '<span><label for="suspects-class">It should be</label> <select id="suspects-class">'
        f'<option value="">what the model says</option>{options}</select></span>'
        '<button type="button" id="suspects-change" disabled>Change</button></div>'
    )


def sample_map(view: Snapshot) -> str:
    """Return the place of the map, which `map.js` draws; empty before the first review."""
    ts = view.suspects[0]
    if ts is None:
        return ""
    may = ' data-may=""' if view.may_label else ""
    return (
        "<p>Samples that look alike to the model lie near each other. A ring marks a label that the model"
        f' contradicts.</p><div id="map-place" data-drawn="{ts}"{may}>'
        "<noscript>The map needs JavaScript.</noscript></div>"
    )
