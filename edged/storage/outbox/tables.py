"""The tables of outbox.db: one a kind of message, each only appended to and eaten from its beginning."""

# ruff: noqa: S608  every statement is put together from the names of `MessageKind` alone

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
from edged.domain.training.message import Message
from edged.storage.files.database import connect, json_list, translated

FORMAT = 1
TABLES = (
    *(
        f"CREATE TABLE {kind.name} (number INTEGER PRIMARY KEY, age REAL NOT NULL, topic TEXT NOT NULL,"
        " payload BLOB NOT NULL)"
        for kind in MessageKind
    ),
    """CREATE TABLE counts (
        kind INTEGER PRIMARY KEY, pending INTEGER NOT NULL, bytes INTEGER NOT NULL,
        dropped INTEGER NOT NULL)""",
    *(f"INSERT INTO counts VALUES ({kind.value}, 0, 0, 0)" for kind in MessageKind),
    "CREATE TABLE clock (id INTEGER PRIMARY KEY, age REAL NOT NULL, wall REAL NOT NULL)",
    "INSERT INTO clock VALUES (1, 0, 0)",
)


class Key(NamedTuple):
    """Where a message is kept; a number is never used twice while the process lives."""

    kind: MessageKind
    number: int


@dataclass(frozen=True)
class OutboxBacklog(Message):
    """What waits: messages, their bytes, and how many were given up since the file was made."""

    pending: int = 0
    bytes: int = 0
    dropped: int = 0


class OutboxRow(NamedTuple):
    """What decides about giving a message up; `age` is seconds of the outbox's own time at which it came."""

    number: int
    size: int
    topic: str
    age: float

    @property
    def update(self) -> str:
        """The weight update that it is a part of."""
        return self.topic.rpartition("/")[0]


def rows(db: sqlite3.Connection, kind: MessageKind, after: int) -> Generator[OutboxRow, None, None]:
    """The messages behind number `after`, the oldest first; close it when it is not read to its end."""
    found = db.execute(
        f"SELECT number, length(topic) + length(payload), topic, age FROM {kind.name}"
        " WHERE number > ? ORDER BY number",
        (after,),
    )
    with closing(found):
        yield from map(OutboxRow._make, found)


def parcels(
    db: sqlite3.Connection, kind: MessageKind, after: int
) -> Generator[tuple[Key, OutboxMessage], None, None]:
    """Read keys and messages of one kind after the number `after`, oldest first."""
    found = db.execute(
        f"SELECT number, topic, payload FROM {kind.name} WHERE number > ? ORDER BY number", (after,)
    )
    with closing(found):
        for number, topic, payload in found:
            yield Key(kind, number), OutboxMessage(kind, topic, payload)


def last_number(db: sqlite3.Connection, kind: MessageKind) -> int:
    """Number of the newest message; 0 if there is none."""
    return int(db.execute(f"SELECT max(number) FROM {kind.name}").fetchone()[0] or 0)


def insert(
    db: sqlite3.Connection, kind: MessageKind, new: Sequence[tuple[int, OutboxMessage]], age: float
) -> None:
    """Add messages that came at `age`, with their numbers."""
    values = [(number, age, parcel.topic, parcel.payload) for number, parcel in new]
    db.executemany(f"INSERT INTO {kind.name} VALUES (?, ?, ?, ?)", values)


def delete(db: sqlite3.Connection, kind: MessageKind, numbers: Sequence[int]) -> None:
    """Delete messages by their numbers."""
    db.execute(
        f"DELETE FROM {kind.name} WHERE number IN (SELECT value FROM json_each(?))", (json_list(numbers),)
    )


def read_counts(db: sqlite3.Connection) -> dict[MessageKind, OutboxBacklog]:
    """Count the waiting messages of each kind."""
    return {MessageKind(kind): OutboxBacklog(*counts) for kind, *counts in db.execute("SELECT * FROM counts")}


def read_clock(db: sqlite3.Connection) -> tuple[float, float]:
    """The outbox's own time and the wall time at the last commit."""
    age, wall = db.execute("SELECT age, wall FROM clock").fetchone()
    return age, wall


def write_counts(
    db: sqlite3.Connection, counts: Mapping[MessageKind, OutboxBacklog], age: float, wall: float
) -> None:
    """Keep counts and times with the transaction that changed them."""
    db.executemany(
        "UPDATE counts SET pending = ?, bytes = ?, dropped = ? WHERE kind = ?",
        [(*vars(counted).values(), kind) for kind, counted in counts.items()],
    )
    db.execute("UPDATE clock SET age = ?, wall = ?", (age, wall))


def waiting(path: Path) -> OutboxBacklog:
    """Count what waits in an outbox that is not open; StorageError when it is missing or cannot be read."""
    with closing(connect(path, TABLES, FORMAT, readonly=True)) as db, translated(path):
        return total(read_counts(db))


def total(counts: Mapping[MessageKind, OutboxBacklog]) -> OutboxBacklog:
    """Add up the backlogs of all kinds."""
    of_kinds = (vars(backlog).values() for backlog in counts.values())
    return OutboxBacklog(*map(sum, zip(*of_kinds, strict=True)))
