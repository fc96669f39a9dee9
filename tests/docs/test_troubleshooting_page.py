"""docs/troubleshooting.md: every error, finding, reason and event of the code has its entry."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged import errors
from edged.domain import events
from edged.domain.messages.sent import EVENTS
from tests.docs.test_code_blocks import command_lines, understood

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
FINDINGS = {"_ok", "_error", "CheckResult"}


def entries(title: str) -> set[str]:
    """Names in the first column of the table below a heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, title
    rows = re.findall(r"^\| (`[^|]*)\|", found[1], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def calls(path: Path, names: set[str]) -> Iterator[ast.Call]:
    """Calls in a file of functions or classes with one of these names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def words(value: ast.expr) -> Iterator[str]:
    """Texts that an expression can be, a choice between two included."""
    match value:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=one, orelse=other):
            yield from (*words(one), *words(other))


def reasons(kind: str) -> set[str]:
    """First arguments with which the code raises an error of this kind."""
    return {
        word
        for path in (ROOT / "edged").rglob("*.py")
        for call in calls(path, {kind})
        if call.args
        for word in words(call.args[0])
    }


def test_every_kind_of_error_has_its_exit_code() -> None:
    classes = inspect.getmembers(errors, inspect.isclass)
    kinds = {name: kind for name, kind in classes if issubclass(kind, errors.EdgedError)}
    assert entries("Errors and exit codes") == set(kinds)
    for name, kind in kinds.items():
        row = next(line for line in PAGE.splitlines() if line.startswith("| `") and f"`{name}`" in line)
        assert str(kind.exit_code) in row or "| – |" in row, name


def test_every_finding_of_doctor_is_explained() -> None:
    found = {word for call in calls(ROOT / "edged/cli/doctor.py", FINDINGS) for word in words(call.args[0])}
    assert len(found) > 15
    assert entries("What doctor reports") == found


@pytest.mark.parametrize(
    ("title", "kind"),
    [("Rejected messages", "RejectedSampleError"), ("Refused updates", "RejectedUpdateError")],
)
def test_every_reason_is_explained(title: str, kind: str) -> None:
    found = reasons(kind)
    assert len(found) > 10
    assert found <= entries(title)


def test_every_event_is_explained() -> None:
    assert entries("Events") == set(EVENTS)


def test_every_event_of_the_code_is_in_the_contract() -> None:
    kinds = [
        kind for _, kind in inspect.getmembers(events, inspect.isclass) if issubclass(kind, events.Event)
    ]
    names = {kind.NAME for kind in kinds if hasattr(kind, "NAME")}
    assert names | set(events.TransferInstalled.NAMES.values()) == set(EVENTS)


def test_every_event_is_on_the_page_of_events() -> None:
    text = (ROOT / "docs" / "signals.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z_]+)`", text, re.MULTILINE)) >= set(EVENTS)


@pytest.mark.parametrize("line", sorted({*re.findall(r"`(edged [^`]* [A-Z]{4}[^`]*)`", PAGE)}))
def test_commands_in_the_tables_are_understood(line: str) -> None:
    for command in command_lines(line):
        understood(command)
