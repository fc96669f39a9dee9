"""docs/operating.md speaks of every event, and the contract knows every event that the code has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from edged.domain.messages.sent import EVENTS

ROOT = Path(__file__).parents[2]
TELLING = {"event", "notify", "_notify", "_notice", "_event"}


def names_in(node: ast.expr) -> list[str]:
    """Texts that an argument may be."""
    if isinstance(node, ast.IfExp):
        return names_in(node.body) + names_in(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def told() -> set[str]:
    """The first argument of each call that tells of an event, where it is written there."""
    found = set()
    for path in (ROOT / "edged").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                found |= set(names_in(node.args[0])) if called in TELLING else set()
    return found


def explained(page: str) -> set[str]:
    """Events in the first column of a page's tables."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return {name for name in re.findall(r"^\| `([a-z_]+)`", text, re.MULTILINE) if name in EVENTS}


def test_every_event_of_the_code_is_in_the_contract() -> None:
    assert len(told()) > 15
    assert told() <= set(EVENTS)


def test_every_event_is_explained_with_what_to_do() -> None:
    assert explained("operating.md") == set(EVENTS)


def test_every_event_is_on_the_page_of_topics() -> None:
    assert explained("mqtt.md") == set(EVENTS)
