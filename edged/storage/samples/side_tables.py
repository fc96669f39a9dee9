"""Tables beside the samples: open windows, values to join, classes, imported files, and refused messages.

They change in the transaction that stores what changed them. So a message that makes no sample may be
acknowledged: after a power cut its window or its join continues with it.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from edged.domain.commits.commit_group import JoinChanges
from edged.domain.stream.open_classes import OpenClass
from edged.domain.stream.sample import HeldLabel, LabelValue, Rejected
from edged.domain.stream.windowing import OpenWindowChanges, OpenWindows
from edged.storage.files.checked_table import CheckedTable
from edged.storage.samples import label_actions

# classes.becomes  the output that counts in its place, -1 for none; see OpenClass.
TABLES = (
    """CREATE TABLE open_windows (
        key TEXT PRIMARY KEY, ts REAL NOT NULL, x BLOB NOT NULL, y BLOB, anchor REAL NOT NULL,
        next INTEGER NOT NULL, skip INTEGER NOT NULL, late INTEGER NOT NULL, rate REAL) WITHOUT ROWID""",
    "CREATE TABLE open_rows (number INTEGER PRIMARY KEY, key TEXT NOT NULL, x BLOB NOT NULL, y BLOB)",
    """CREATE TABLE joined_values (
        key TEXT PRIMARY KEY, ts REAL NOT NULL, state BLOB NOT NULL, checksum INTEGER NOT NULL)
        WITHOUT ROWID""",
    """CREATE TABLE held_labels (
        key TEXT PRIMARY KEY, since REAL NOT NULL, y BLOB NOT NULL, checksum INTEGER NOT NULL)
        WITHOUT ROWID""",
    """CREATE TABLE classes (
        place INTEGER PRIMARY KEY, name TEXT NOT NULL, becomes INTEGER NOT NULL, command TEXT)""",
    """CREATE TABLE imports (
        file TEXT PRIMARY KEY, options TEXT NOT NULL, name TEXT NOT NULL, samples INTEGER NOT NULL,
        finished REAL) WITHOUT ROWID""",
    """CREATE TABLE quarantine (
        number INTEGER PRIMARY KEY, ts REAL NOT NULL, topic TEXT NOT NULL, reason TEXT NOT NULL,
        payload BLOB NOT NULL, detail TEXT NOT NULL)""",
    "CREATE TABLE quarantine_reasons (reason TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID",
)
PAYLOAD_BYTES = 4096  # of a refused message that are kept
_ROW_BYTES = 60  # of a row, beside key and values
_AGE = {
    "quarantine": "ts", "open_windows": "ts", "joined_values": "ts", "label_actions": "ts",
    "labels_before": "oldest",
}  # fmt: skip
"""Tables whose rows grow too old, by the column that says when they came."""
_JOINED_VALUES = CheckedTable("joined_values", ("key", "ts", "state"), "key")
_HELD_LABELS = CheckedTable("held_labels", ("key", "since", "y"), "key")


@dataclass(frozen=True)
class ImportProgress:
    """One file: `samples` of it are stored, all of them once `finished` (Unix seconds) is known.

    `file` is the SHA-256 of its content, `options` that of the format and the stream that it is read for.
    """

    file: str
    options: str
    name: str
    samples: int = 0
    finished: float | None = None


def any_before(db: sqlite3.Connection, moment: float) -> bool:
    """Tell whether `drop_before` would drop anything."""
    return any(
        db.execute(f"SELECT 1 FROM {table} WHERE {column} < ? LIMIT 1", (moment,)).fetchone()  # noqa: S608  constants
        for table, column in _AGE.items()
    )


def drop_before(db: sqlite3.Connection, moment: float) -> None:
    """Drop refused messages, keys and what was said of labels before this moment (Unix seconds)."""
    old = "SELECT key FROM open_windows WHERE ts < ?"
    db.execute(f"DELETE FROM open_rows WHERE key IN ({old})", (moment,))  # noqa: S608  the line above
    label_actions.drop(db, "ts < ?", moment)
    for table, column in _AGE.items():
        db.execute(f"DELETE FROM {table} WHERE {column} < ?", (moment,))  # noqa: S608  constants


def clear(db: sqlite3.Connection, *, labels_only: bool) -> None:
    """Delete what holds something of samples, or of labels alone; what was said of labels in either case."""
    label_actions.drop(db, "?", 1)
    for table in ("open_rows", "open_windows"):
        db.execute(f"UPDATE {table} SET y = NULL" if labels_only else f"DELETE FROM {table}")  # noqa: S608  constants
    for table in ("held_labels",) if labels_only else ("held_labels", "joined_values", "imports"):
        db.execute(f"DELETE FROM {table}")  # noqa: S608  constants


# ---- open windows ----------------------------------------------------------------------------


def write_windows(db: sqlite3.Connection, changes: OpenWindowChanges) -> None:
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


def read_windows(db: sqlite3.Connection) -> OpenWindows:
    """Read all open windows and their rows; TypeError or ValueError when they are damaged."""
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


def bytes_of_windows(changes: OpenWindowChanges, channels: int) -> int:
    """Estimate how much the new rows take in the file."""
    return sum(_ROW_BYTES + 4 * channels + len(row.key) for row in changes.rows.values())


def _floats(x: np.ndarray) -> bytes:
    return np.asarray(x, "<f4").tobytes()


def _label(label: LabelValue | None) -> bytes | None:
    return None if label is None else np.asarray(label, "<f8").tobytes()


def _value(stored: bytes | None) -> LabelValue | None:
    if stored is None:
        return None
    values = np.frombuffer(stored, "<f8").tolist()
    return float(values[0]) if len(values) == 1 else tuple(values)


# ---- values that samples are joined from -----------------------------------------------------


def write_joins(db: sqlite3.Connection, changes: JoinChanges) -> None:
    """Store changes into the current transaction; a second time they change nothing."""
    _JOINED_VALUES.delete(db, [key for key, state in changes.states.items() if state is None])
    for key, state in changes.states.items():
        if state is not None:
            row = {"key": key, "ts": changes.now, "state": np.asarray(state, "<f8").tobytes()}
            _JOINED_VALUES.insert(db, row, replace=True)
    _HELD_LABELS.delete(db, [key for key, held in changes.held.items() if held is None])
    for key, held in changes.held.items():
        if held is not None:
            row = {"key": key, "since": held.since, "y": _label(held.label)}
            _HELD_LABELS.insert(db, row, replace=True)
    for change in changes.said:
        label_actions.record_held(db, change)


def read_states(db: sqlite3.Connection) -> dict[str, array[float]]:
    """Read the numbers of every key; a damaged row is left out."""
    return {
        row["key"]: array("d", np.frombuffer(row["state"], "<f8").tolist())
        for row in _JOINED_VALUES.select(db)
    }


def read_held(db: sqlite3.Connection) -> dict[str, HeldLabel]:
    """Read the labels that hold; a damaged row is left out."""
    found = {row["key"]: (_value(row["y"]), row["since"]) for row in _HELD_LABELS.select(db)}
    return {key: HeldLabel(label, since) for key, (label, since) in found.items() if label is not None}


def bytes_of_joins(changes: JoinChanges) -> int:
    """Estimate how much changes take in the file."""
    return sum(_ROW_BYTES + len(key) + 8 * len(state or ()) for key, state in changes.states.items())


# ---- classes that come and go, imported files ------------------------------------------------


def read_classes(db: sqlite3.Connection) -> list[OpenClass]:
    """Read all classes, in the order of their outputs."""
    return [
        OpenClass(*row) for row in db.execute("SELECT name, becomes, command FROM classes ORDER BY place")
    ]


def write_classes(db: sqlite3.Connection, classes: Sequence[OpenClass]) -> None:
    """Store all classes, in the current transaction."""
    rows = [(place, one.name, one.becomes, one.command) for place, one in enumerate(classes)]
    db.executemany("INSERT OR REPLACE INTO classes VALUES (?, ?, ?, ?)", rows)


def write_import(db: sqlite3.Connection, progress: ImportProgress) -> None:
    """Store how many samples of a file are stored, in the transaction of those samples."""
    db.execute("INSERT OR REPLACE INTO imports VALUES (?, ?, ?, ?, ?)", astuple(progress))


def read_import(db: sqlite3.Connection, file: str) -> ImportProgress | None:
    """Read the progress of a file by the SHA-256 of its content; None for one that was never imported."""
    row = db.execute("SELECT * FROM imports WHERE file = ?", (file,)).fetchone()
    return None if row is None else ImportProgress(*row)


# ---- messages that could not become samples --------------------------------------------------


def rejections_allowed(rows: int, max_bytes: int) -> int:
    """Return how many messages are kept: `rows`, but at most a sixteenth of the log's bytes."""
    return max(1, min(rows, max_bytes // 16 // (PAYLOAD_BYTES + 512)))


def write_rejections(db: sqlite3.Connection, rejected: Sequence[Rejected], keep: int) -> None:
    """Store messages into the current transaction, count their reasons, and drop the oldest beyond `keep`."""
    db.executemany(
        "INSERT INTO quarantine (ts, topic, reason, payload, detail) VALUES (?, ?, ?, ?, ?)",
        [(r.ts, r.topic, r.reason, r.payload[:PAYLOAD_BYTES], r.detail) for r in rejected[-keep:]],
    )
    db.execute("DELETE FROM quarantine WHERE number <= (SELECT max(number) FROM quarantine) - ?", (keep,))
    db.executemany(
        "INSERT INTO quarantine_reasons VALUES (?, ?)"
        " ON CONFLICT (reason) DO UPDATE SET count = count + excluded.count",
        list(Counter(r.reason for r in rejected).items()),
    )


def newest_rejections(db: sqlite3.Connection, limit: int) -> list[Rejected]:
    """Read the newest `limit` messages, newest first."""
    found = db.execute(
        "SELECT ts, topic, reason, payload, detail FROM quarantine ORDER BY number DESC LIMIT ?", (limit,)
    )
    return [Rejected(*row) for row in found]


def rejection_counts(db: sqlite3.Connection) -> dict[str, int]:
    """Count all messages that were ever rejected, by reason."""
    return dict(db.execute("SELECT reason, count FROM quarantine_reasons ORDER BY reason"))
