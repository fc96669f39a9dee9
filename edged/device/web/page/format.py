"""Elements that all sections of the page use, and times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any


def moment(ts: float | None) -> str:
    """Format a time, which browsers show in their own time zone (`page.js`)."""
    if ts is None:
        return "–"
    try:
        utc = datetime.fromtimestamp(ts, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return escape(f"{ts:g}")
    return f'<time datetime="{utc.isoformat(timespec="seconds")}">{utc:%Y-%m-%d %H:%M:%S} UTC</time>'


def facts(pairs: Mapping[str, str]) -> str:
    """Return a list of names with their values, which are HTML already."""
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in pairs.items())
    return f"<dl>{rows}</dl>"


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], styles: Sequence[str] = ()
) -> str:
    """Return a table; cells are HTML already, the first cell of a row names it.

    `styles` are classes of the columns, such as `wide` for one that phones leave out.
    """
    classes = [f' class="{style}"' if style else "" for style in styles] or [""] * len(head)
    names = "".join(f'<th scope="col"{c}>{escape(n)}</th>' for n, c in zip(head, classes, strict=True))
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td{c}>{cell}</td>" for cell, c in zip(rest, classes[1:], strict=True))
        lines.append(f'<tr><th scope="row"{classes[0]}>{first}</th>{cells}</tr>')
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{names}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def button(name: str, ask: str, command: str, fields: Mapping[str, Any], *, about: str = "") -> str:
    """Return a button that sends a command after a confirmation.

    `about` is a longer name for screen readers.
    """
    label = f' aria-label="{escape(about)}"' if about else ""
    # Its id survives a refresh, so that the focus does, too.
    identity = escape("-".join([command, *(str(value) for value in fields.values())]))
    return (
        f'<button type="button" id="do-{identity}" data-command="{escape(command)}" data-ask="{escape(ask)}"'
        f' data-fields="{escape(json.dumps(fields))}"{label}>{escape(name)}</button>'
    )


def meter(name: str, value: float, most: float, text: str) -> str:
    """Return a bar for `value` out of `most`, with its text."""
    part = max(0.0, min(1.0, value / most if most else 0.0))
    return (
        f'<meter aria-label="{escape(name)}" value="{part:.4f}" high="0.9">{part:.0%}</meter> {escape(text)}'
    )
