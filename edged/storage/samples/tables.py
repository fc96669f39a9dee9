"""The tables of samples.db and the one row of exact counts, always written in the same transaction."""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from edged.domain.stream.schema import Schema
from edged.errors import CorruptError, StorageError
from edged.storage.files.checked_table import CheckedTable, checksum
from edged.storage.samples import label_actions, side_tables

MOST_SOURCES = 1000


@dataclass
class SampleCounts:
    """The exact counts, as kept in the database.

    `samples`, `labels`, `relabelled` (labels that came after an earlier one), `contradicted` (those of them
    that said something else), `orphaned` (labels whose sample was gone), `quarantined` and `evicted` count
    from the beginning; `rows` and `holdout_labels` count what is there.
    """

    samples: int
    labels: int
    relabelled: int
    orphaned: int
    quarantined: int
    evicted: int
    rows: int
    holdout_labels: int
    next_offset: int
    next_seq: int
    contradicted: int

    @classmethod
    def read(cls, db: sqlite3.Connection) -> SampleCounts:
        """Read the counts of the current transaction; CorruptError when they are not what was written."""
        rows = _TALLY.select(db)
        if len(rows) != 1:
            raise CorruptError("its counts are damaged", where="samples.db")
        return cls(*(rows[0][name] for name in _NAMES))

    def write(self, db: sqlite3.Connection) -> None:
        """Write the counts in the current transaction."""
        _TALLY.update(db, {"rowid": 1, **vars(self)})


_NAMES = tuple(field.name for field in fields(SampleCounts))
_FIRST = [int(name.startswith("next_")) for name in _NAMES]
_TALLY = CheckedTable("tally", _NAMES, "rowid")
_STREAM = CheckedTable("stream", ("name", "value"), "name")
FORMAT = 1
# samples.x       `d` float32, little endian; the context that the model saw them with may stand behind them.
# samples.y       REAL for one target, float32 little endian for several; NULL while unlabelled, and
#                 always NULL where the target is the input itself.
# label_seq       position in label order; NULL while unlabelled.
# label_ts        when a label came by itself; NULL for one that came with its sample.
# changes         how often the label was contradicted; NULL for never. See labels.py. Very large for a sample
#                 that is not learned from whatever its label.
# source          number of where the label came from, in label_sources; NULL where it has none.
# id_key          see labels.py. `packet` is checksum << 16 | MQTT packet id; table packets holds those
#                 of messages that brought no sample, with the next offset at that time as their place.
# checksum        see CheckedTable.
# The partial indexes keep unlabelled rows out; each labelled row is in exactly one of the two.
TABLES = (
    """CREATE TABLE samples (
        offset INTEGER PRIMARY KEY, key TEXT NOT NULL, ts REAL NOT NULL, ingested REAL NOT NULL,
        x BLOB NOT NULL, y REAL, label_seq INTEGER, holdout INTEGER NOT NULL, id_key INTEGER, id TEXT,
        packet INTEGER, label_ts REAL, changes INTEGER, source INTEGER, checksum INTEGER NOT NULL)""",
    "CREATE INDEX training_order ON samples(label_seq) WHERE label_seq IS NOT NULL AND holdout = 0",
    "CREATE INDEX holdout_order ON samples(label_seq) WHERE label_seq IS NOT NULL AND holdout = 1",
    "CREATE INDEX sender_ids ON samples(id_key) WHERE id_key IS NOT NULL",
    "CREATE TABLE replay (offset INTEGER PRIMARY KEY)",
    """CREATE TABLE packets (
        number INTEGER PRIMARY KEY, next_offset INTEGER NOT NULL, packet INTEGER NOT NULL)""",
    "CREATE TABLE label_sources (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    """CREATE TABLE stream (
        name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID""",
    f"CREATE TABLE tally ({', '.join(f'{name} INTEGER NOT NULL' for name in (*_NAMES, 'checksum'))})",
    f"INSERT INTO tally VALUES ({', '.join(map(str, (*_FIRST, checksum(*_FIRST))))})",
    *side_tables.TABLES,
    *label_actions.TABLES,
)


def stream_values(schema: Schema) -> dict[str, str]:
    """What the stored rows mean, as text: a log is only good for the stream that it was written for."""
    return {
        "width": str(schema.measured),
        "window": str(schema.steps),
        "targets": str(schema.targets),
        "task": schema.task,
        "features": "\n".join(schema.names),
        "classes": "open" if schema.open is not None else "\n".join(schema.classes),
    }


def check_stream(db: sqlite3.Connection, path: Path, schema: Schema) -> bool:
    """Whether the log carries a stream's meaning yet; it must be this one's.

    New classes may be added at the end: stored class indices keep their meaning.

    Raises StorageError naming the first thing that differs.
    """
    stored = {row["name"]: row["value"] for row in _STREAM.select(db)}
    if len(stored) != db.execute("SELECT count(*) FROM stream").fetchone()[0]:
        raise CorruptError("what its rows mean is damaged", where=str(path))
    for name, value in stream_values(schema).items():
        kept = stored.get(name, value)
        grown = name == "classes" and value.startswith(kept + "\n")
        if kept != value and not grown:
            raise StorageError(
                f"the stored samples have {name} {_short(kept)}, the configuration says {_short(value)}",
                where=str(path),
                remedy="restore the configuration, or choose another storage.dir",
            )
    return stored == stream_values(schema)


def numbers_of(db: sqlite3.Connection, sources: Iterable[str]) -> dict[str, int]:
    """Return the numbers of sources of labels, new ones noted in the current transaction.

    Beyond `MOST_SOURCES` of them the rest are one.
    """
    numbers = {}
    for name in {source for source in sources if source}:
        found = db.execute("SELECT number FROM label_sources WHERE name = ?", (name,)).fetchone()
        if found is None:
            (count,) = db.execute("SELECT count(*) FROM label_sources").fetchone()
            known = name if count < MOST_SOURCES else ""
            db.execute("INSERT OR IGNORE INTO label_sources (name) VALUES (?)", (known,))
            found = db.execute("SELECT number FROM label_sources WHERE name = ?", (known,)).fetchone()
        numbers[name] = int(found[0])
    return numbers


def write_stream(db: sqlite3.Connection, schema: Schema) -> None:
    """Store what the rows mean, in the current transaction."""
    for name, value in stream_values(schema).items():
        _STREAM.insert(db, {"name": name, "value": value}, replace=True)


def _short(value: str) -> str:
    return repr(value.replace("\n", ", ")[:60])
