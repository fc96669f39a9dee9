"""docs/operating.md speaks of every event, and the contract knows every event that the code has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from edged.domain import events
from edged.domain.messages.sent import EVENTS

ROOT = Path(__file__).parents[2]


def told() -> set[str]:
    """The names of all events that a device has."""
    kinds = [
        kind for _, kind in inspect.getmembers(events, inspect.isclass) if issubclass(kind, events.Event)
    ]
    return {kind.NAME for kind in kinds if hasattr(kind, "NAME")} | set(
        events.TransferInstalled.NAMES.values()
    )


def explained(page: str) -> set[str]:
    """Events in the first column of a page's tables."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return {name for name in re.findall(r"^\| `([a-z_]+)`", text, re.MULTILINE) if name in EVENTS}


def test_every_event_of_the_code_is_in_the_contract() -> None:
    assert told() == set(EVENTS)


def test_every_event_is_explained_with_what_to_do() -> None:
    assert explained("operating.md") == set(EVENTS)


def test_every_event_is_on_the_page_of_topics() -> None:
    assert explained("mqtt.md") == set(EVENTS)
