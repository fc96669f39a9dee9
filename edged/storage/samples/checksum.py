"""The checksum of a sample's row: SQLite does not notice when a value changes on the disk."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from edged.errors import StorageError

if TYPE_CHECKING:
    import sqlite3

CHECKED = "key, ts, holdout, x, y, checksum"
"""Columns of what `is_whole` looks at."""
_DOUBLE = struct.Struct("<d")


def checksum(key: str, ts: float, holdout: int, x: bytes, y: float | bytes | None) -> int:
    """CRC-32 of what is learned from a row.

    Raises StorageError for values that no row can have.
    """
    try:
        label = b"" if y is None else y if isinstance(y, bytes) else _DOUBLE.pack(y)
        return crc32(x, crc32(label, crc32(key.encode(), crc32(_DOUBLE.pack(ts), holdout))))
    except (AttributeError, TypeError, ValueError, OverflowError, struct.error) as problem:
        raise StorageError(f"no row of a sample: {problem}", where="samples.db") from problem


def checksum_with(y: str) -> str:
    """SQL of the checksum that a row has with another label, an expression; see `provide_checksum`."""
    return f"row_checksum(key, ts, holdout, x, {y})"


def provide_checksum(db: sqlite3.Connection) -> None:
    """Let statements on this connection use `checksum_with`."""
    db.create_function("row_checksum", 5, checksum)


def is_whole(row: Sequence[Any], size: int) -> bool:
    """Whether a row is what was written, given as key, ts, holdout, x, y and checksum.

    A row of an earlier edged has no checksum: its label is a number or bytes. The features of a sample have
    `size` bytes; what is behind them is context, several times as many.
    """
    key, ts, holdout, x, y, expected = row
    try:
        found = checksum(key, ts, holdout, x, y)
    except StorageError:
        return False
    return len(x) >= size and len(x) % size == 0 and (expected is None or expected == found)
