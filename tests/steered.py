"""A device that is asked things by their transaction, and a check of all that it says by its schemas."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import jsonschema

from edged.domain.messages.sent import schemas

if TYPE_CHECKING:
    from tests.running_device import Listener


def ask(listener: Listener, command: str, **fields: Any) -> dict[str, Any]:
    """Send a command and return its last answer; its transaction occurs in no recorded state either."""
    transaction = fields.setdefault("transaction", secrets.token_hex(8))
    listener.publish(f"{listener.root}/request/{command}", json.dumps(fields))
    listener.wait(lambda: last(listener, command, transaction), 60)
    found = last(listener, command, transaction)
    assert found is not None
    return found


def answers(listener: Listener, command: str, transaction: Any) -> list[dict[str, Any]]:
    """All answers to a command so far."""
    return [
        answer
        for answer in list(listener.messages[f"response/{command}"])
        if answer.get("transaction") == transaction
    ]


def last(listener: Listener, command: str, transaction: Any) -> dict[str, Any] | None:
    """The answer that says how it ended, once it is there."""
    ended = (
        a for a in answers(listener, command, transaction) if a["state"] not in ("accepted", "executing")
    )
    return next(ended, None)


def data(listener: Listener, command: str, **fields: Any) -> Any:
    """What a command that has to go well answers."""
    answer = ask(listener, command, **fields)
    assert answer["status"] == "ok", answer
    return answer["data"]


def conform(listener: Listener) -> set[str]:
    """Compare every message that has come with the schema of its topic; the topics."""
    known = schemas()
    seen = set()
    for topic, messages in list(listener.messages.items()):
        name = "progress" if topic.startswith("progress/") else topic
        judge = jsonschema.Draft202012Validator(known[name])
        for message in list(messages):
            judge.validate(message)
            seen.add(name)
    return seen
