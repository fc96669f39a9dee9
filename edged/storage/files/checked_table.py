"""Tables whose rows carry a CRC-32, so that a row that changed on the disk is noticed, and only it is lost.

SQLite notices damage to the structure of its pages, not to the values in them.
"""

# ruff: noqa: S608  every statement is put together from constants alone

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

from edged.logs import get_logger

if TYPE_CHECKING:
    import sqlite3

log = get_logger("edged.database")


@dataclass(frozen=True)
class CheckedTable:
    """A table with `columns` and a column `checksum`, NULL in rows that an earlier edged wrote.

    `key` finds a row. The columns in `encoded` hold JSON.
    """

    name: str
    columns: tuple[str, ...]
    key: str
    encoded: tuple[str, ...] = ()

    def insert(self, db: sqlite3.Connection, row: Mapping[str, Any], *, replace: bool = False) -> None:
        """Insert a row in the current transaction, or replace that of the same key."""
        verb, marks = "INSERT OR REPLACE" if replace else "INSERT", ", ".join("?" * (len(self.columns) + 1))
        db.execute(
            f"{verb} INTO {self.name} ({', '.join(self.columns)}, checksum) VALUES ({marks})",
            self._stored(row),
        )

    def update(self, db: sqlite3.Connection, row: Mapping[str, Any]) -> None:
        """Write a row in place of the one with the same `key`, in the current transaction."""
        settings = ", ".join(f"{name} = ?" for name in (*self.columns, "checksum"))
        db.execute(
            f"UPDATE {self.name} SET {settings} WHERE {self.key} = ?", (*self._stored(row), row[self.key])
        )

    def select(self, db: sqlite3.Connection, which: str = "", *values: Any) -> list[dict[str, Any]]:
        """The rows that a clause such as `WHERE ...` chooses, without those that are damaged."""
        found = db.execute(f"SELECT {', '.join(self.columns)}, checksum FROM {self.name} {which}", values)
        rows = [self._decoded(row) for row in found]
        whole = [row for row in rows if row is not None]
        if len(whole) < len(rows):
            log.warning("rows_damaged", table=self.name, rows=len(rows) - len(whole), action="not used")
        return whole

    def drop_damaged(self, db: sqlite3.Connection) -> int:
        """Delete damaged rows in the current transaction; how many."""
        key = f"CAST({self.key} AS BLOB)"  # it may be no text that could be asked for
        found = db.execute(f"SELECT {', '.join(self.columns)}, checksum, {key} FROM {self.name}")
        doomed = [(row[-1],) for row in found if self._decoded(row[:-1]) is None]
        db.executemany(f"DELETE FROM {self.name} WHERE {key} IS ?", doomed)
        return len(doomed)

    def _stored(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of a row as its columns have them, and their checksum."""
        given = ((name, row[name]) for name in self.columns)
        values = [json.dumps(value) if name in self.encoded else value for name, value in given]
        return (*values, _checksum(values))

    def _decoded(self, row: tuple[Any, ...]) -> dict[str, Any] | None:
        """The values by column; None when they are not what was written."""
        *values, checksum = row
        if checksum is not None and checksum != _checksum(values):
            return None
        decoded = dict(zip(self.columns, values, strict=True))
        try:
            return decoded | {
                name: json.loads(decoded[name]) for name in self.encoded if decoded[name] is not None
            }
        except (TypeError, ValueError, RecursionError):
            return None


def _checksum(values: list[Any]) -> int:
    """Of the values as SQLite gives them back, whichever kind of number went in."""
    plain = [float(v) if isinstance(v, int | float) else v for v in values]
    return crc32(repr(plain).encode())
