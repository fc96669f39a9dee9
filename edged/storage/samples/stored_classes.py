"""Classes that come and go, as the sample log remembers them: from the transaction of a first label on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edged.domain.stream.open_classes import OpenClass

if TYPE_CHECKING:
    import sqlite3

# classes.becomes  the output that counts in its place, -1 for none; see OpenClass.
TABLES = (
    """CREATE TABLE classes (
        place INTEGER PRIMARY KEY, name TEXT NOT NULL, becomes INTEGER NOT NULL, command TEXT)""",
)


def read(db: sqlite3.Connection) -> list[OpenClass]:
    """All classes, in the order of their outputs."""
    return [
        OpenClass(*row) for row in db.execute("SELECT name, becomes, command FROM classes ORDER BY place")
    ]


def write(db: sqlite3.Connection, classes: Sequence[OpenClass]) -> None:
    """Store all classes, in the current transaction."""
    rows = [(place, one.name, one.becomes, one.command) for place, one in enumerate(classes)]
    db.executemany("INSERT OR REPLACE INTO classes VALUES (?, ?, ?, ?)", rows)
