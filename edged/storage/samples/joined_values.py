"""The newest values of each key and the labels that hold, in the sample log: what samples are joined from.

They change in the transaction that stores the messages that changed them. So a message that makes no sample
may be acknowledged: after a power cut the join goes on with what it had.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from edged.domain.labels.held_labels import HeldLabel
from edged.logs import get_logger
from edged.storage.samples.label_actions import record_held

if TYPE_CHECKING:
    import sqlite3

    from edged.domain.commits.commit_group import JoinChanges

TABLES = (
    """CREATE TABLE joined_values (
        key TEXT PRIMARY KEY, ts REAL NOT NULL, state BLOB NOT NULL, checksum INTEGER NOT NULL)
        WITHOUT ROWID""",
    """CREATE TABLE held_labels (
        key TEXT PRIMARY KEY, since REAL NOT NULL, y BLOB NOT NULL, checksum INTEGER NOT NULL)
        WITHOUT ROWID""",
)
_ROW_BYTES = 60

log = get_logger("edged.samples")


def write(db: sqlite3.Connection, changes: JoinChanges) -> None:
    """Store changes into the current transaction; a second time they change nothing."""
    states = [(key, state) for key, state in changes.states.items() if state is not None]
    gone = [(key,) for key, state in changes.states.items() if state is None]
    db.executemany("DELETE FROM joined_values WHERE key = ?", gone)
    db.executemany(
        "INSERT OR REPLACE INTO joined_values VALUES (?, ?, ?, ?)",
        [
            (key, changes.now, raw := _raw(state), _checksum(key.encode(), changes.now, raw))
            for key, state in states
        ],
    )
    ended = [(key,) for key, held in changes.held.items() if held is None]
    db.executemany("DELETE FROM held_labels WHERE key = ?", ended)
    db.executemany(
        "INSERT OR REPLACE INTO held_labels VALUES (?, ?, ?, ?)",
        [
            (
                *(key, held.since, raw := np.asarray(held.label, "<f8").tobytes()),
                _checksum(key.encode(), held.since, raw),
            )
            for key, held in changes.held.items()
            if held is not None
        ],
    )
    for change in changes.said:
        record_held(db, change)


def read_states(db: sqlite3.Connection) -> dict[str, array[float]]:
    """Read the numbers of every key; one that is not what was written is left out."""
    return {
        key: array("d", np.frombuffer(raw, "<f8").tolist())
        for key, _, raw in _whole(db, "joined_values", "ts", "state")
    }


def read_held(db: sqlite3.Connection) -> dict[str, HeldLabel]:
    """Read the labels that hold; one that is not what was written is left out."""
    found = {}
    for key, since, raw in _whole(db, "held_labels", "since", "y"):
        values = np.frombuffer(raw, "<f8").tolist()
        found[key] = HeldLabel(values[0] if len(values) == 1 else tuple(values), since)
    return found


def _whole(db: sqlite3.Connection, table: str, when: str, numbers: str) -> list[tuple[str, float, bytes]]:
    """Key, time and numbers of the rows that are what was written."""
    found, damaged = [], 0
    # As bytes: damage may leave no text that could be decoded.
    columns = f"CAST(key AS BLOB), {when}, {numbers}, checksum"
    for key, ts, raw, checksum in db.execute(f"SELECT {columns} FROM {table}"):  # noqa: S608  constants
        try:
            whole = checksum == _checksum(key, ts, raw)
            row = key.decode(), ts, raw
        except (AttributeError, TypeError, ValueError, struct.error):
            whole = False
        if whole:
            found.append(row)
        damaged += not whole
    if damaged:
        log.warning("rows_damaged", table=table, rows=damaged, action="not used")
    return found


def _checksum(key: bytes, ts: float, numbers: bytes) -> int:
    return crc32(numbers, crc32(struct.pack("<d", ts), crc32(key)))


def need_bytes(changes: JoinChanges) -> int:
    """About how much changes take in the file."""
    return sum(_ROW_BYTES + len(key) + 8 * len(state or ()) for key, state in changes.states.items())


def any_before(db: sqlite3.Connection, moment: float) -> bool:
    """Whether there is a key that changed last before this moment (Unix seconds)."""
    return bool(db.execute("SELECT 1 FROM joined_values WHERE ts < ? LIMIT 1", (moment,)).fetchone())


def drop_before(db: sqlite3.Connection, moment: float) -> None:
    """Drop the values of keys that changed last before this moment (Unix seconds)."""
    db.execute("DELETE FROM joined_values WHERE ts < ?", (moment,))


def clear(db: sqlite3.Connection, *, labels_only: bool = False) -> None:
    """Delete all values and labels, or the labels alone."""
    db.execute("DELETE FROM held_labels")
    if not labels_only:
        db.execute("DELETE FROM joined_values")


def _raw(state: array[float]) -> bytes:
    return np.asarray(state, "<f8").tobytes()
