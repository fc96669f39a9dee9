"""The table of the command journal: which commands came, how far they have come, what they were answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from edged.domain.commands.rules import State

MIGRATION = (
    "DROP TABLE commands",
    """CREATE TABLE commands (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, ts REAL NOT NULL,
        digest TEXT NOT NULL, state TEXT NOT NULL, request TEXT NOT NULL, answer TEXT, ended REAL,
        response_topic TEXT, correlation BLOB)""",
    "CREATE INDEX open_commands ON commands(state) WHERE ended IS NULL",
)
COLUMNS = "id, name, ts, digest, state, request, answer, ended, response_topic, correlation"


@dataclass(frozen=True)
class CommandRecord:
    """One command: who it is, when it came (Unix seconds), how far it has come, what it was answered last.

    `digest` tells requests under one identity apart; `request` is kept where the command is gone on with
    after a restart; `response_topic` and `correlation` are MQTT 5's.
    """

    id: str
    name: str
    ts: float
    digest: str
    state: State
    request: dict[str, Any]
    answer: dict[str, Any] | None = None
    ended: float | None = None
    response_topic: str | None = None
    correlation: bytes | None = None


class CommandRetention(NamedTuple):
    """How many commands are remembered, and those since when (Unix seconds)."""

    rows: int
    since: float
