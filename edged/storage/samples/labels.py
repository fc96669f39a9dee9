"""Labels that come after their samples: which sample each belongs to, and what becomes of it.

A label names its sample by the sender's id, or by key and time. Ids are often random, and an index over
random values dirties one page for every row: five times the time and twenty times the bytes written, which
wears out flash. So rows are cut into stretches of 8192 offsets, and the index holds
`stretch << 32 | crc32(id)`: inserts stay within a few pages, and a look-up goes through the stretches, newest
first. The id itself is compared in the row, so that equal checksums do no harm. Times need an index over
(key, ts), which costs each insert about 1 µs. It is made when the first label is joined by time, and then
kept: other deployments do not pay for it.

The last label wins, until there have been too many of them. A label that differs from the one before is a
contradiction. It is counted and takes the other's place; a sample whose label has been changed more often
than allowed loses it, and is learned from no more.
"""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from edged.domain.stream.sample import LabelReading, LabelUpdate
from edged.storage.files.database import json_list, transaction
from edged.storage.samples.reader import WindowReader
from edged.storage.samples.rows import STRETCH_BITS, checksum_with
from edged.storage.samples.tables import SampleCounts, numbers_of

PREDICTION_ID = re.compile(r"[0-9]+-([0-9]{1,18})")
_ID_STATEMENT = """SELECT max(offset) FROM samples
    WHERE id_key IN (SELECT value FROM json_each(?)) AND id = ?"""
_BY_OFFSET = "SELECT offset FROM samples WHERE offset = ?"
_BEFORE = "SELECT offset, ts FROM samples WHERE key = ? AND ts <= ? ORDER BY ts DESC, offset DESC LIMIT 1"
_AFTER = "SELECT offset, ts FROM samples WHERE key = ? AND ts > ? ORDER BY ts, offset DESC LIMIT 1"
_SET = f"UPDATE samples SET y = ?1, checksum = {checksum_with('?1')}, label_ts = ?2, source = ?5"
_FRESH = f"{_SET}, label_seq = ?3 WHERE offset = ?4"
_AGAIN = f"{_SET}, changes = ?3 WHERE offset = ?4"
_WITHDRAW = f"{_SET}, label_seq = NULL, changes = ?3 WHERE offset = ?4"
_ASIDE = """UPDATE samples SET label_seq = NULL
    WHERE label_seq IS NOT NULL AND offset IN (SELECT value FROM json_each(?))"""
_SET_ASIDE = """SELECT offset, holdout FROM samples
    WHERE key = ? AND offset >= ? AND label_seq IS NULL ORDER BY offset"""
_READMIT = "UPDATE samples SET label_seq = ? WHERE offset = ?"
_STATES = """SELECT offset, label_seq, holdout, y, changes FROM samples
    WHERE offset IN (SELECT value FROM json_each(?))"""


# ---- which sample -------------------------------------------------------------------------------


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

    `_writes` says whether it may make an index for it, `_tolerance` how many seconds a time may be off.
    """

    _writes = False
    _tolerance = 0.5
    _times_indexed = False

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


# ---- what becomes of it -------------------------------------------------------------------------


@dataclass(slots=True)
class _State:
    """The label of one stored sample."""

    seq: int | None
    holdout: int
    y: Any
    changes: int


def apply(
    db: sqlite3.Connection,
    updates: Sequence[LabelUpdate],
    values: Iterable[Any],
    tally: SampleCounts,
    allowed: int,
) -> None:
    """Write labels into the current transaction, in this order.

    `updates` have the offsets of their samples, `values` are the same labels as column `y` has them, and may
    be endless. The label of one sample may change as often as `allowed`. The counts of `tally` are brought up
    to date.
    """
    known = _states(db, [update.offset for update in updates])
    sources = numbers_of(db, (update.source for update in updates))
    for update, value in zip(updates, values, strict=False):
        state = known.get(update.offset)
        if state is None:
            tally.orphaned += 1
        elif state.seq is None and state.changes <= allowed:
            _first(db, state, update, value, tally, sources.get(update.source))
        else:
            tally.relabelled += 1
            _another(db, state, update, value, tally, allowed, sources.get(update.source))


def _first(
    db: sqlite3.Connection,
    state: _State,
    update: LabelUpdate,
    value: Any,
    tally: SampleCounts,
    source: int | None,
) -> None:
    db.execute(_FRESH, (value, update.ts, tally.next_seq, update.offset, source))
    state.seq, state.y = tally.next_seq, value
    tally.next_seq += 1
    tally.labels += 1
    tally.holdout_labels += state.holdout


def _another(
    db: sqlite3.Connection,
    state: _State,
    update: LabelUpdate,
    value: Any,
    tally: SampleCounts,
    allowed: int,
    source: int | None,
) -> None:
    if state.seq is None:
        return  # it was withdrawn: nothing makes its label trustworthy again
    if value != state.y:
        tally.contradicted += 1
        state.changes += 1
    if state.changes <= allowed:
        db.execute(_AGAIN, (value, update.ts, state.changes or None, update.offset, source))
        state.y = value
        return
    db.execute(_WITHDRAW, (None, update.ts, state.changes, update.offset, source))
    state.seq = state.y = None
    tally.holdout_labels -= state.holdout


def exclude(db: sqlite3.Connection, offsets: Sequence[int], tally: SampleCounts) -> None:
    """Exclude samples from label order, in the current transaction; their labels stay."""
    out = [state for state in _states(db, list(offsets)).values() if state.seq is not None]
    tally.holdout_labels -= sum(state.holdout for state in out)
    tally.relabelled += len(out)  # readers that hold them read them again
    db.execute(_ASIDE, (json_list(list(offsets)),))


def include(db: sqlite3.Connection, key: str, first: int, tally: SampleCounts) -> int:
    """Put what was set aside of a key, from offset `first` on, at the end of label order; how many."""
    found = db.execute(_SET_ASIDE, (key, first)).fetchall()
    for seq, (offset, holdout) in enumerate(found, tally.next_seq):
        db.execute(_READMIT, (seq, offset))
        tally.holdout_labels += holdout
    tally.next_seq += len(found)
    return len(found)


def _states(db: sqlite3.Connection, offsets: list[int]) -> dict[int, _State]:
    """Of the samples that are there."""
    found = db.execute(_STATES, (json_list(offsets),))
    return {offset: _State(seq, holdout, y, changes or 0) for offset, seq, holdout, y, changes in found}
