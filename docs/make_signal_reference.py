# ruff: noqa: INP001  a program, not a package
"""Writes docs/signals.md (events, metrics) from the code; `--check` only says whether it is up to date.

Run from anywhere: `python docs/make_signal_reference.py`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from generated import write_or_check

from edged.device.web.api import metrics
from edged.domain.messages.sent import EVENTS

PAGE = Path(__file__).with_name("signals.md")
KINDS = {"gauge": "gauge", "counter": "counter", "histograms": "histogram"}
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
    tree = ast.parse(inspect.getsource(metrics))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        known: dict[str, ast.expr] = {}
        for node in sorted((n for n in ast.walk(function) if hasattr(n, "lineno")), key=lambda n: n.lineno):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                known[node.targets[0].id] = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                row = _row(node.func.attr, node.args, known)
                if row is not None:
                    yield row


def _row(method: str, given: list[ast.expr], known: dict[str, ast.expr]) -> str | None:
    """The row of a call that adds a metric; None for any other call."""
    kind = KINDS.get(method)
    if method == "many" and isinstance(given[0], ast.Constant):
        kind, given = str(given[0].value), given[1:]
    if kind is None or len(given) < 3 or not isinstance(given[0], ast.Constant):
        return None
    about, values = (
        known[one.id] if isinstance(one, ast.Name) and one.id in known else one for one in given[1:3]
    )
    labels = [f"`{name}`" for name in _labels(values, known)]
    assert isinstance(about, ast.Constant), given[0].value  # noqa: S101
    return f"| `{given[0].value}` | {kind} | {', '.join(labels)} | {str(about.value).rstrip('.')} |"


def _labels(values: ast.expr, known: dict[str, ast.expr]) -> list[str]:
    """The names of labels in the first pair of labels and value."""
    for node in ast.walk(values):
        if isinstance(node, ast.Tuple) and isinstance(node.elts[0], ast.Dict | ast.Name):
            first = node.elts[0]
            first = known.get(first.id, first) if isinstance(first, ast.Name) else first
            keys = first.keys if isinstance(first, ast.Dict) else []
            return [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    return []


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "\n".join(event_rows()) + "\n" + METRICS + "\n".join(metric_rows()) + "\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), __file__))
