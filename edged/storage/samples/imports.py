"""Imported files in the sample log: how many samples of each are stored, changed with those samples."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

from edged.domain.commits.imported import ImportProgress

if TYPE_CHECKING:
    import sqlite3

TABLES = (
    """CREATE TABLE imports (
        file TEXT PRIMARY KEY, options TEXT NOT NULL, name TEXT NOT NULL, samples INTEGER NOT NULL,
        finished REAL) WITHOUT ROWID""",
)


def write(db: sqlite3.Connection, progress: ImportProgress) -> None:
    """Store the progress of a file in the current transaction."""
    db.execute("INSERT OR REPLACE INTO imports VALUES (?, ?, ?, ?, ?)", astuple(progress))


def read(db: sqlite3.Connection, file: str) -> ImportProgress | None:
    """Read the progress of a file by the SHA-256 of its content; None for one that was never imported."""
    row = db.execute("SELECT * FROM imports WHERE file = ?", (file,)).fetchone()
    return None if row is None else ImportProgress(*row)
