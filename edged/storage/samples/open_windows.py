"""Open windows in the sample log: rows that belong to no sample yet, and where each key stands.

They change in the transaction that stores what changed them. So a reading that completes no window may be
acknowledged: after a power cut its window goes on with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import sqlite3

    from edged.domain.stream.sample import LabelValue
    from edged.domain.stream.windowing import OpenWindowChanges, OpenWindows

TABLES = (
    """CREATE TABLE open_windows (
        key TEXT PRIMARY KEY, ts REAL NOT NULL, x BLOB NOT NULL, y BLOB, anchor REAL NOT NULL,
        next INTEGER NOT NULL, skip INTEGER NOT NULL, late INTEGER NOT NULL, rate REAL) WITHOUT ROWID""",
    "CREATE TABLE open_rows (number INTEGER PRIMARY KEY, key TEXT NOT NULL, x BLOB NOT NULL, y BLOB)",
)
_ROW_BYTES = 40


def write(db: sqlite3.Connection, changes: OpenWindowChanges) -> None:
    """Store changes into the current transaction; a second time they change nothing."""
    db.executemany("DELETE FROM open_rows WHERE number = ?", [(number,) for number in changes.gone])
    db.executemany(
        "INSERT OR REPLACE INTO open_rows VALUES (?, ?, ?, ?)",
        [(number, row.key, _floats(row.x), _label(row.label)) for number, row in changes.rows.items()],
    )
    gone = [(key,) for key, head in changes.heads.items() if head is None]
    db.executemany("DELETE FROM open_windows WHERE key = ?", gone)
    db.executemany(
        "INSERT OR REPLACE INTO open_windows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                *(key, head.ts, _floats(head.x), _label(head.label)),
                *(head.anchor, head.next, head.skip, head.late, head.rate),
            )
            for key, head in changes.heads.items()
            if head is not None
        ],
    )


def read(db: sqlite3.Connection) -> OpenWindows:
    """Read all open windows and their rows."""
    from edged.domain.stream.windowing import OpenWindowRow, OpenWindows, WindowHead

    heads = {
        key: WindowHead(ts, np.frombuffer(x, "<f4").astype(np.float32), _value(y), *rest)
        for key, ts, x, y, *rest in db.execute("SELECT * FROM open_windows")
    }
    rows = {
        number: OpenWindowRow(key, np.frombuffer(x, "<f4").astype(np.float32), _value(y))
        for number, key, x, y in db.execute("SELECT * FROM open_rows ORDER BY number")
    }
    return OpenWindows(heads, rows)


def need_bytes(changes: OpenWindowChanges, channels: int) -> int:
    """About how much the new rows take in the file."""
    return sum(_ROW_BYTES + 4 * channels + len(row.key) for row in changes.rows.values())


def any_before(db: sqlite3.Connection, moment: float) -> bool:
    """Whether there is a key whose last reading was before this moment (Unix seconds)."""
    return bool(db.execute("SELECT 1 FROM open_windows WHERE ts < ? LIMIT 1", (moment,)).fetchone())


def drop_before(db: sqlite3.Connection, moment: float) -> None:
    """Drop the windows of keys whose last reading was before this moment (Unix seconds)."""
    if any_before(db, moment):
        old = "SELECT key FROM open_windows WHERE ts < ?"
        db.execute(f"DELETE FROM open_rows WHERE key IN ({old})", (moment,))  # noqa: S608  the line above
        db.execute("DELETE FROM open_windows WHERE ts < ?", (moment,))


def clear(db: sqlite3.Connection, *, labels_only: bool = False) -> None:
    """Delete all open windows, or only their labels."""
    for table in ("open_rows", "open_windows"):
        db.execute(f"UPDATE {table} SET y = NULL" if labels_only else f"DELETE FROM {table}")  # noqa: S608  constants


def _floats(x: np.ndarray) -> bytes:
    return np.asarray(x, "<f4").tobytes()


def _label(label: LabelValue | None) -> bytes | None:
    return None if label is None else np.asarray(label, "<f8").tobytes()


def _value(stored: bytes | None) -> LabelValue | None:
    if stored is None:
        return None
    values = np.frombuffer(stored, "<f8").tolist()
    return float(values[0]) if len(values) == 1 else tuple(values)
