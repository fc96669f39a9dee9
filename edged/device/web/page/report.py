"""The report of the device as one HTML file: figures, quality over time, gate results."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from edged.charts.html import document
from edged.device.web.page.format import facts
from edged.device.web.page.forms import evaluations
from edged.device.web.page.sections import SECTIONS
from edged.device.web.page.snapshot import Right
from edged.domain.text import summary, when

if TYPE_CHECKING:
    from edged.device.web.page.snapshot import Snapshot

STYLE = Path(__file__).with_name("static") / "page.css"
CONTENTS = ("quality", "model", "training", "sensors", "storage", "events")


def report(view: Snapshot) -> str:
    """Return the report as HTML, without controls."""
    view = replace(view, may=Right(label=False, control=False, session=False))
    told = {name: escape(line) for name, line in summary(view.status).items()}
    parts = [f"<p>As of {when(view.now)}.</p>", facts(told)]
    judged = evaluations(view) or "<p>Nobody has asked for one since the start (command evaluate).</p>"
    parts.append(f"<h2>Evaluations on samples kept for judging</h2>{judged}")
    parts += [f"<h2>{escape(SECTIONS[name][0])}</h2>{SECTIONS[name][1](view)}" for name in CONTENTS]
    style = STYLE.read_text(encoding="utf-8")
    return document(f"edged on {view.device}", "".join(parts), style)
