# ruff: noqa: INP001  a program, not a package
"""Writes docs/signals.md (events, metrics) from the code; `--check` only says whether it is up to date.

Run from anywhere: `python docs/make_signal_reference.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated import write_or_check

from edged.device.web.api import metrics
from edged.domain.messages.sent import EVENTS

PAGE = Path(__file__).with_name("signals.md")
INTRODUCTION = """\
# Events and metrics

What a device reports. [Commands](commands.md) lists the exit codes; [troubleshooting](troubleshooting.md)
says what to do.

This page is generated from the code by `docs/make_signal_reference.py`.

## Events

Topic `events`, and `/api/events` over HTTP. Each event also has `event` (its name), `ts` (Unix seconds),
`seq` and `boot`. Fields with `?` can be absent.

| event | fields |
|---|---|
"""
METRICS = """
## Metrics

`/metrics`, in the text format of Prometheus. A metric without a value is absent.

| metric | type | labels | meaning |
|---|---|---|---|
"""


def field(name: str, schema: dict[str, Any], *, required: bool) -> str:
    """A field with the type or the values it has."""
    kinds = schema.get("type", "")
    told = " or ".join(kinds) if isinstance(kinds, list) else kinds
    told = ", ".join(schema["enum"]) if "enum" in schema else told
    about = "; ".join(part for part in (told, schema.get("description", "")) if part)
    return f"`{name}`{'' if required else '?'}{f' ({about})' if about else ''}"


def event_rows() -> Iterator[str]:
    """A row for each event."""
    for name, schema in EVENTS.items():
        required = schema.get("required", [])
        fields = [field(key, of, required=key in required) for key, of in schema["properties"].items()]
        yield f"| `{name}` | {', '.join(fields)} |"


def metric_rows() -> Iterator[str]:
    """A row for each metric that the page of a device can have."""
    for name, family in (metrics.OF_DEVICE | metrics.OF_STREAM).items():
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield f"| `{name}` | {family.kind} | {labels} | {family.about.rstrip('.')} |"


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "\n".join(event_rows()) + "\n" + METRICS + "\n".join(metric_rows()) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), __file__))
