"""Which sample a late label belongs to: by the sender's id, or by key and time.

Ids are often random, and an index over random values dirties one page for every row: five times
the time and twenty times the bytes written, which wears out flash. So rows are cut into stretches
of 8192 offsets and the index holds `stretch << 32 | crc32(id)`: inserts stay within a few
pages, and a look-up goes through the stretches from the newest on. The id itself is compared in
the row, so that equal checksums do no harm.

Times need an index over (key, ts), which costs each insert about 1 µs. It is made when the first
label is joined by time, and then kept: other deployments do not pay for it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

from edged.domain.stream.sample import LabelReading
from edged.domain.stream.schema import Schema
from edged.storage.files.database import json_list, transaction
from edged.storage.samples.reader import WindowReader
from edged.storage.samples.rows import STRETCH_BITS
from edged.storage.samples.tables import SampleCounts

PREDICTION_ID = re.compile(r"[0-9]+-([0-9]{1,18})")
_ID_STATEMENT = """SELECT max(offset) FROM samples
    WHERE id_key IN (SELECT value FROM json_each(?)) AND id = ?"""
_BY_OFFSET = "SELECT offset FROM samples WHERE offset = ?"
_BEFORE = "SELECT offset, ts FROM samples WHERE key = ? AND ts <= ? ORDER BY ts DESC, offset DESC LIMIT 1"
_AFTER = "SELECT offset, ts FROM samples WHERE key = ? AND ts > ? ORDER BY ts, offset DESC LIMIT 1"


def by_id(db: sqlite3.Connection, sample_id: str, first: int, last: int) -> int | None:
    """Offset of the newest sample with this id, between the offsets `first` and `last`."""
    checksum = crc32(sample_id.encode())
    for stretches in _groups(first >> STRETCH_BITS, last >> STRETCH_BITS):
        keys = json_list([stretch << 32 | checksum for stretch in stretches])
        found: int | None = db.execute(_ID_STATEMENT, (keys, sample_id)).fetchone()[0]
        if found is not None:
            return found
    return None


def _groups(oldest: int, newest: int) -> Iterator[range]:
    """Stretch numbers in growing groups, newest first: most labels come soon."""
    size = 2
    while newest >= oldest:
        low = max(oldest, newest - size + 1)
        yield range(low, newest + 1)
        newest, size = low - 1, size * 8


def by_time(db: sqlite3.Connection, key: str, ts: float, tolerance: float) -> int | None:
    """Offset of the sample of `key` nearest to `ts`, at most `tolerance` seconds away; the earlier of two."""
    near = [row for sql in (_BEFORE, _AFTER) for row in db.execute(sql, (key, ts))]
    distance, _, offset = min(
        ((abs(row[1] - ts), i, row[0]) for i, row in enumerate(near)), default=(0.0, 0, None)
    )
    return offset if offset is not None and distance <= tolerance else None


class JoiningReader(WindowReader):
    """A sample log that finds the samples of labels.

    `writes` says whether it may make an index for it, `tolerance` how many seconds a time may be off.
    """

    def __init__(
        self, db: sqlite3.Connection, path: Path, schema: Schema, *, writes: bool, tolerance: float = 0.5
    ) -> None:
        super().__init__(db, path, schema)
        self._tolerance = tolerance
        self._writes = writes
        self._times_indexed = False

    def find_many(self, readings: Sequence[LabelReading]) -> list[int | None]:
        """Offset of the stored sample of each label, by its id, or by key and time; None without one.

        By the sender's id the newest sample is meant; else the id may be that of a prediction. By time it is
        the nearest sample of the key within the tolerance.
        """
        if any(r.key is not None and r.ts is not None for r in readings):
            self.index_times()
        with self._reading():
            first = self._db.execute("SELECT min(offset) FROM samples").fetchone()[0] or 0
            last = SampleCounts.read(self._db).next_offset - 1
            return [self._find(reading, first, last) for reading in readings]

    def _find(self, reading: LabelReading, first: int, last: int) -> int | None:
        if reading.id is not None:
            found = by_id(self._db, reading.id, first, last)
            predicted = PREDICTION_ID.fullmatch(reading.id) if found is None else None
            row = predicted and self._db.execute(_BY_OFFSET, (int(predicted[1]),)).fetchone()
            return row[0] if row else found
        if reading.key is not None and reading.ts is not None:
            return by_time(self._db, reading.key, reading.ts, self._tolerance)
        return None

    def index_times(self) -> None:
        """Have an index over key and time, unless this log only reads."""
        if self._writes and not self._times_indexed:
            with self._lock, transaction(self._db, self._path):
                # About a second for a million rows.
                self._db.execute("CREATE INDEX IF NOT EXISTS sample_times ON samples(key, ts)")
        self._times_indexed = True

    def only_key(self) -> str | None:
        """The key of all samples; None when there are several, or no samples."""
        self.index_times()
        with self._reading():
            first, last = self._db.execute(
                "SELECT (SELECT min(key) FROM samples), (SELECT max(key) FROM samples)"
            ).fetchone()
        return str(first) if first is not None and first == last else None

    def holds(self, offsets: Sequence[int]) -> set[int]:
        """Those of the offsets whose samples are still here."""
        return set(self._column("offset", offsets))

    def arrivals(self, offsets: Sequence[int]) -> dict[int, float]:
        """When those of these samples that are still here came, Unix seconds, by offset."""
        return self._column("ingested", offsets)
