"""Tables whose rows carry a CRC-32, so that a row that changed on the disk is noticed, and only it is lost.

SQLite notices damage to the structure of its pages, not to the values in them.
"""

# ruff: noqa: S608  every statement is put together from constants alone

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from edged.errors import StorageError
from edged.logs import get_logger

log = get_logger("edged.database")

_DOUBLE = struct.Struct("<d")
_NULL, _NUMBER, _BYTES, _TEXT = range(4)


def checksum(*values: Any) -> int:
    """Compute the CRC-32 of the values of a row: None, numbers, bytes or text.

    All numbers count as floats: SQLite gives them back as another type than went in.

    Raises StorageError for values that no row can have.
    """
    found = 0
    try:
        for value in values:
            if isinstance(value, bytes):
                found = crc32(value, found ^ _BYTES)
            elif isinstance(value, str):
                found = crc32(value.encode("utf-8", "surrogateescape"), found ^ _TEXT)
            elif value is None:
                found = crc32(b"\0", found ^ _NULL)
            else:
                found = crc32(_DOUBLE.pack(value), found ^ _NUMBER)
    except (ValueError, OverflowError, struct.error) as problem:
        raise StorageError(f"a value does not fit into a row: {problem}", where="database") from problem
    return found


@dataclass(frozen=True)
class CheckedTable:
    """A table with `columns` and a column `checksum` of their values.

    `key` finds a row; it need not be one of the columns. Those in `encoded` hold JSON.
    """

    name: str
    columns: tuple[str, ...]
    key: str
    encoded: tuple[str, ...] = ()

    def insert(self, db: sqlite3.Connection, row: Mapping[str, Any], *, replace: bool = False) -> int:
        """Insert a row in the current transaction, or replace that of the same key; return its rowid."""
        verb, marks = "INSERT OR REPLACE" if replace else "INSERT", ", ".join("?" * (len(self.columns) + 1))
        statement = f"{verb} INTO {self.name} ({', '.join(self.columns)}, checksum) VALUES ({marks})"
        return db.execute(statement, self._stored(row)).lastrowid or 0

    def update(self, db: sqlite3.Connection, row: Mapping[str, Any]) -> None:
        """Write a row in place of the one with the same `key`, in the current transaction."""
        settings = ", ".join(f"{name} = ?" for name in (*self.columns, "checksum"))
        db.execute(
            f"UPDATE {self.name} SET {settings} WHERE {self.key} = ?", (*self._stored(row), row[self.key])
        )

    def delete(self, db: sqlite3.Connection, keys: Iterable[Any]) -> None:
        """Delete the rows with these keys in the current transaction."""
        db.executemany(f"DELETE FROM {self.name} WHERE {self.key} = ?", [(key,) for key in keys])

    def select(self, db: sqlite3.Connection, which: str = "", *values: Any) -> list[dict[str, Any]]:
        """Return the rows that a clause such as `WHERE ...` chooses, without those that are damaged.

        They have the key, too.
        """
        found = db.execute(
            f"SELECT {', '.join(self.columns)}, checksum, {self.key} FROM {self.name} {which}", values
        )
        rows = [self._decoded(row) for row in found]
        whole = [row for row in rows if row is not None]
        if len(whole) < len(rows):
            log.warning("rows_damaged", table=self.name, rows=len(rows) - len(whole), action="not used")
        return whole

    def drop_damaged(self, db: sqlite3.Connection) -> int:
        """Delete damaged rows in the current transaction; return their number."""
        key = f"CAST({self.key} AS BLOB)"  # it may be no text that could be asked for
        found = db.execute(f"SELECT {', '.join(self.columns)}, checksum, {key} FROM {self.name}")
        doomed = [(row[-1],) for row in found if self._decoded(row) is None]
        db.executemany(f"DELETE FROM {self.name} WHERE {key} IS ?", doomed)
        return len(doomed)

    def _stored(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of a row as its columns have them, and their checksum."""
        given = ((name, row[name]) for name in self.columns)
        values = [json.dumps(value) if name in self.encoded else value for name, value in given]
        return (*values, checksum(*values))

    def _decoded(self, row: tuple[Any, ...]) -> dict[str, Any] | None:
        """Return the values by column; None when they are not what was written."""
        *values, expected, key = row
        if expected != checksum(*values):
            return None
        decoded = {self.key: key} | dict(zip(self.columns, values, strict=True))
        try:
            return decoded | {
                name: json.loads(decoded[name]) for name in self.encoded if decoded[name] is not None
            }
        except (TypeError, ValueError, RecursionError):
            return None
