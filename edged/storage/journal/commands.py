"""The rows of the command journal: which commands came, how far they have come, what they were answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from edged.domain.commands.rules import OPEN
from edged.storage.files.database import named

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from edged.domain.commands.rules import State

MIGRATION = (
    "DROP TABLE commands",
    """CREATE TABLE commands (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, ts REAL NOT NULL,
        digest TEXT NOT NULL, state TEXT NOT NULL, request TEXT NOT NULL, answer TEXT, ended REAL,
        response_topic TEXT, correlation BLOB)""",
    "CREATE INDEX open_commands ON commands(state) WHERE ended IS NULL",
)
_COLUMNS = "id, name, ts, digest, state, request, answer, ended, response_topic, correlation"


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


def find(db: sqlite3.Connection, key: str) -> CommandRecord | None:
    """Find the command with this identity; None if there is none."""
    row = db.execute(f"SELECT {_COLUMNS} FROM commands WHERE id = ?", (key,)).fetchone()  # noqa: S608
    return None if row is None else _record(row)


def insert(db: sqlite3.Connection, record: CommandRecord, kept: CommandRetention) -> float | None:
    """Add one, and forget others; when the newest of those came, or None where none was forgotten."""
    db.execute(
        f"INSERT INTO commands ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (
            record.id, record.name, record.ts, record.digest, record.state, json.dumps(record.request),
            None, None, record.response_topic, record.correlation,
        ),
    )  # fmt: skip
    # What has no outcome yet is never forgotten.
    doomed = (
        "ended IS NOT NULL AND (ts < ? OR number <= (SELECT max(number) FROM commands) - ?)",
        (kept.since, kept.rows),
    )
    newest = db.execute(f"SELECT max(ts) FROM commands WHERE {doomed[0]}", doomed[1]).fetchone()[0]  # noqa: S608
    if newest is None:
        return None
    db.execute(f"DELETE FROM commands WHERE {doomed[0]}", doomed[1])  # noqa: S608
    return float(newest)


def update(
    db: sqlite3.Connection, key: str, state: State, answer: Mapping[str, Any] | None, ended: float | None
) -> sqlite3.Cursor:
    """Note a new state, and an answer where there is one."""
    text = None if answer is None else json.dumps(dict(answer))
    return db.execute(
        "UPDATE commands SET state = ?, answer = coalesce(?, answer), ended = ? WHERE id = ?",
        (state, text, ended, key),
    )


def unfinished(db: sqlite3.Connection) -> list[CommandRecord]:
    """List the commands without an outcome, oldest first."""
    marks = ", ".join("?" * len(OPEN))
    rows = db.execute(
        f"SELECT {_COLUMNS} FROM commands WHERE ended IS NULL AND state IN ({marks}) ORDER BY number",  # noqa: S608
        OPEN,
    )
    return [_record(row) for row in rows]


def newest(db: sqlite3.Connection, limit: int) -> list[CommandRecord]:
    """List the newest commands, newest first."""
    rows = db.execute(f"SELECT {_COLUMNS} FROM commands ORDER BY number DESC LIMIT ?", (limit,))  # noqa: S608
    return [_record(row) for row in rows]


def _record(row: Sequence[Any]) -> CommandRecord:
    return CommandRecord(**named(_COLUMNS, row, "request", "answer"))
