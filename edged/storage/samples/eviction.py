"""Which samples go when there is no room: the oldest, but the replay memory last. An order erases all."""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from edged.clock import Ages
from edged.storage.files.database import PAGE_SIZE, WAL_BYTES, file_pages, used_pages
from edged.storage.samples import side_tables
from edged.storage.samples.rows import WITHDRAWN, checksum_with
from edged.storage.samples.tables import SampleCounts

_ROUNDS = 4
_ROW_BYTES = 110  # of a row and its index entries, beside x, y, key and id
_UNPROTECTED = """SELECT offset, ingested FROM samples
    WHERE offset >= ? AND NOT EXISTS (SELECT 1 FROM replay WHERE replay.offset = samples.offset)
    ORDER BY offset LIMIT ?"""
_ANY = "SELECT offset, ingested FROM samples WHERE offset >= ? ORDER BY offset LIMIT ?"
_RANGE = "offset BETWEEN ? AND ?"
_NOT_PROTECTED = "AND NOT EXISTS (SELECT 1 FROM replay WHERE replay.offset = samples.offset)"


def wal_budget(max_bytes: int) -> int:
    """Bytes of the cap that belong to the write-ahead log."""
    return min(WAL_BYTES, max_bytes // 8)


class Eviction:
    """Keeps the pages in use below a limit, inside the writer's own transactions.

    `max_bytes` is the cap of database and write-ahead log together; `max_age` the seconds after which a
    sample or a refused message goes, None for never. `ages` tells how old a stamp is on a device whose clock
    may be set; without it the difference of the stamps counts. `spare_replay` says whether the replay memory
    outlives `max_age`: it is bounded.
    """

    def __init__(
        self, max_bytes: int, max_age: float | None, ages: Ages | None = None, *, spare_replay: bool = True
    ) -> None:
        self.limit_pages = (max_bytes - wal_budget(max_bytes)) // PAGE_SIZE
        self._max_age = max_age
        self._ages = ages
        self._spare_replay = spare_replay
        self._start = 0  # below it there are only protected rows

    def forget_position(self) -> None:
        """Look from the oldest row again: after a rollback, or when other rows are protected."""
        self._start = 0

    def make_room(self, db: sqlite3.Connection, tally: SampleCounts, need_bytes: int, slice_rows: int) -> int:
        """Evict until `need_bytes` more fit, at most a few slices; the number of rows evicted."""
        need = need_bytes * 5 // 4 // PAGE_SIZE + 2 if need_bytes else 0
        total = 0
        for _ in range(_ROUNDS):
            used = used_pages(db)
            excess = used + need - self.limit_pages
            if excess <= 0 or tally.rows == 0:
                break
            rows = min(slice_rows, excess * tally.rows // used + 1)
            total += self._evict(db, tally, rows)
        return total

    def due(self, db: sqlite3.Connection, now: float) -> bool:
        """Whether something is too old or too much."""
        if file_pages(db) > self.limit_pages:
            return True
        if self._max_age is None:
            return False
        before = self._before(self._max_age, now)
        return bool(self._aged(db, 1, now)) or side_tables.any_before(db, before)

    def expire(self, db: sqlite3.Connection, tally: SampleCounts, now: float, rows: int) -> int:
        """Evict at most `rows` samples that are older than the allowed age."""
        if self._max_age is None:
            return 0
        before = self._before(self._max_age, now)
        side_tables.drop_before(db, before)
        old = self._aged(db, rows, now)
        gone = self._delete(db, tally, old, protected=self._spare_replay)
        if old and not self._spare_replay:
            db.execute("DELETE FROM replay WHERE offset <= ?", (old[-1],))
        return gone

    def _before(self, age: float, now: float) -> float:
        """A moment before which every stamp is older than `age`."""
        return now - age if self._ages is None else self._ages.before(age, now)

    def _aged(self, db: sqlite3.Connection, rows: int, now: float) -> list[int]:
        """Offsets of at most `rows` samples beyond the allowed age."""
        rest = (self._start, rows) if self._spare_replay else (0, rows)
        found = db.execute(_UNPROTECTED if self._spare_replay else _ANY, rest)
        old = []
        for offset, ingested in found:
            # Rows lie in the order of arrival: behind the first young one there are no old ones.
            if self._max_age is None or self._age(ingested, now) <= self._max_age:
                break
            old.append(offset)
        found.close()
        return old

    def _age(self, stamp: float, now: float) -> float:
        return now - stamp if self._ages is None else self._ages.age(stamp, now)

    def _evict(self, db: sqlite3.Connection, tally: SampleCounts, rows: int) -> int:
        oldest = [offset for offset, _ in db.execute(_UNPROTECTED, (self._start, rows))]
        gone = self._delete(db, tally, oldest, protected=True)
        if gone:
            return gone
        # Nothing but the replay memory is left: then it has to give way, too.
        self._start = 0
        last = [offset for offset, _ in db.execute(_ANY, (0, rows))]
        gone = self._delete(db, tally, last, protected=False)
        db.execute("DELETE FROM replay WHERE offset <= ?", (last[-1] if last else -1,))
        return gone

    def _delete(
        self, db: sqlite3.Connection, tally: SampleCounts, offsets: list[int], *, protected: bool
    ) -> int:
        if not offsets:
            return 0
        where = f"{_RANGE} {_NOT_PROTECTED if protected else ''}"
        span = (offsets[0], offsets[-1])
        tally.holdout_labels -= db.execute(
            f"SELECT count(*) FROM samples WHERE {where} AND holdout = 1 AND label_seq IS NOT NULL", span
        ).fetchone()[0]
        gone = db.execute(f"DELETE FROM samples WHERE {where}", span).rowcount
        tally.rows -= gone
        tally.evicted += gone
        self._start = offsets[-1] + 1 if protected else 0
        return gone


def row_bytes(width: int, targets: int) -> int:
    """About how much one sample takes in the file, without key and id."""
    return _ROW_BYTES + 4 * width + (4 * targets if targets > 1 else 8)


def protect(db: sqlite3.Connection, offsets: Iterable[int]) -> None:
    """Replace the membership of the replay memory, in the current transaction."""
    wanted = set(offsets)
    present = {row[0] for row in db.execute("SELECT offset FROM replay")}
    db.executemany("DELETE FROM replay WHERE offset = ?", [(offset,) for offset in present - wanted])
    db.executemany("INSERT INTO replay VALUES (?)", [(offset,) for offset in sorted(wanted - present)])


def clear(db: sqlite3.Connection, tally: SampleCounts, *, samples: bool, labels: bool) -> dict[str, int]:
    """Delete all samples, or the labels of all, and what was refused, in the current transaction.

    So it goes with the windows that are no samples yet. Returns how many `samples`, `labels` and
    `quarantined` messages went.
    """
    gone = {"samples": 0, "labels": 0, "quarantined": db.execute("DELETE FROM quarantine").rowcount}
    db.execute("DELETE FROM replay")
    labelled = db.execute("SELECT count(*) FROM samples WHERE label_seq IS NOT NULL").fetchone()[0]
    if samples or labels:
        side_tables.clear(db, labels_only=not samples)
        db.execute("DELETE FROM label_sources")  # topics may name people and machines
    if samples:
        gone["samples"], gone["labels"] = tally.rows, labelled
        db.execute("DELETE FROM samples")
        db.execute("DELETE FROM packets")
        tally.evicted += tally.rows
        tally.rows = tally.holdout_labels = 0
    elif labels:
        gone["labels"] = labelled
        db.execute(
            "UPDATE samples SET y = NULL, label_ts = NULL, label_seq = NULL, source = NULL,"
            f" changes = CASE WHEN changes >= {WITHDRAWN} THEN changes END,"
            f" checksum = {checksum_with('NULL')}"
        )
        tally.holdout_labels = 0
    if samples or labels:
        tally.labels = tally.quarantined = 0
    return gone
