"""The sample log: every accepted message, durable before it is acknowledged.

One writer (the thread that ingests) and any number of readers, in other threads or processes,
each with a connection of its own.
"""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import sqlite3
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from edged.clock import Ages, Clock
from edged.domain.commits.commit_group import JoinChanges
from edged.domain.seeded_rng import is_holdout
from edged.domain.stream.open_classes import OpenClasses
from edged.domain.stream.sample import Batch, HeldLabel, LabelUpdate, Rejected
from edged.domain.stream.schema import Schema
from edged.domain.stream.windowing import OpenWindowChanges, OpenWindows
from edged.errors import CorruptError, RefusedError, StorageError
from edged.storage.files import database
from edged.storage.samples import eviction, side_tables
from edged.storage.samples import labels as labelling
from edged.storage.samples.eviction import Eviction
from edged.storage.samples.labels import JoiningReader
from edged.storage.samples.rows import (
    CHECKED,
    check_rows,
    encoded,
    insert,
    is_whole,
    labelled_rows,
    packed,
    positions,
    provide_checksum,
)
from edged.storage.samples.side_tables import ImportProgress
from edged.storage.samples.tables import (
    FORMAT,
    MOST_SOURCES,
    TABLES,
    SampleCounts,
    check_stream,
    numbers_of,
    write_stream,
)

PACKET_IDS = 65_535  # as many as MQTT has: more cannot be in flight
CLEAN_SECONDS = 60.0
_EVICT_ROWS = 2000
_NO_LIMIT = 2**31


@dataclass(frozen=True)
class LogLimits:
    """What a writer keeps, beside what `Eviction` says; see `SampleLog.open`.

    Of `packets_kept` messages the identifiers are kept, for `recent_packets`.
    """

    holdout: float = 0.0
    quarantine_rows: int = 0
    packets_kept: int = 0
    wal_bytes: int = database.WAL_BYTES
    relabels: int = _NO_LIMIT


class SampleLog(JoiningReader):
    """A bounded, durable log of samples and their labels in one SQLite file.

    Made by `SampleLog.open`. Offsets are given by the writer (`next_offset`) and never used twice.

    `damage` is what a commit, or a read of what ingest continues from, found wrong with the file itself. It
    is permanent: start a new log.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        schema: Schema,
        *,
        evicting: Eviction | None = None,
        limits: LogLimits | None = None,
        tolerance: float = 0.5,
        secure: bool = False,
        beside: SampleLog | None = None,
    ) -> None:
        super().__init__(db, path, schema)
        self._writes, self._tolerance = evicting is not None, tolerance
        self._limits = limits or LogLimits()
        self._secure, self._clean_at = secure, time.monotonic() + CLEAN_SECONDS
        if secure:
            with database.translated(path):
                db.execute("PRAGMA secure_delete = ON")
        self._evicting = evicting
        self._wal = database.WriteAheadLog(path, self._limits.wal_bytes)
        self._classes_stored = -1
        self._beside = beside
        self._held_counts: SampleCounts | None = None
        self._sources: dict[str, int] = {}  # numbers of sources of labels that are stored
        self.damage: CorruptError | None = None
        provide_checksum(db)

    @classmethod
    def open(
        cls,
        path: Path,
        schema: Schema,
        *,
        holdout: float = 0.1,
        max_bytes: int = 512 * 1024**2,
        max_age: float | None = None,
        quarantine_rows: int = 1000,
        relabels: int = _NO_LIMIT,
        tolerance: float = 0.5,
        secure: bool = False,
        readonly: bool = False,
        beside: SampleLog | None = None,
        clock: Clock | None = None,
        cache_kib: int = database.CACHE_KIB,
    ) -> SampleLog:
        """Open the log, creating it unless `readonly`.

        * `path`, the SQLite file; `schema`, what the stream carries: must be what the log was written for.
        * `holdout`: share of samples kept for judging, decided once for each at its arrival.
        * `max_bytes`: cap of the file and its write-ahead log together; 1 MiB at least.
        * `max_age`: seconds after their arrival at which samples are evicted; None for never.
        * `quarantine_rows`: rejected messages that are kept.
        * `relabels`: how often the label of one sample may change before it is withdrawn.
        * `tolerance`: seconds that a label's time may be off its sample's.
        * `secure`: leave nothing of what is evicted in the file, nor in its write-ahead log for more than
          `CLEAN_SECONDS`; let the replay memory age, too.
        * `readonly`: for the trainer and `edged status`; only `path`, `schema` and `beside` matter then.
        * `beside`: the writer in this process, which knows the counts without reading them.
        * `clock`: with it `max_age` is not fooled by the wall clock being set; see `Ages`.
        * `cache_kib`: KiB of pages that stay in memory, half of it when `readonly`.

        Raises StorageError when it is missing (`readonly`), belongs to another stream, or cannot be opened;
        CorruptError when the file is no database any more.
        """
        wal_bytes = eviction.wal_budget(max_bytes)
        db = database.connect(
            path, TABLES, FORMAT,
            readonly=readonly, wal_bytes=wal_bytes, cache_kib=cache_kib,
        )  # fmt: skip
        with ExitStack() as unless_opened:
            unless_opened.callback(db.close)
            cls._prepare(db, path, schema, readonly=readonly)
            unless_opened.pop_all()
        if readonly:
            return cls(db, path, schema, beside=beside)
        ages = None if clock is None else Ages(clock)
        return cls(
            db,
            path,
            schema,
            evicting=Eviction(max_bytes, max_age, ages, spare_replay=not secure),
            limits=LogLimits(
                holdout,
                quarantine_rows=side_tables.rejections_allowed(quarantine_rows, max_bytes),
                packets_kept=max(2048, min(PACKET_IDS, max_bytes // 128)),
                wal_bytes=wal_bytes,
                relabels=relabels,
            ),
            tolerance=tolerance,
            secure=secure,
        )

    @staticmethod
    def _prepare(db: sqlite3.Connection, path: Path, schema: Schema, *, readonly: bool) -> None:
        """Check that the log belongs to this stream."""
        with database.translated(path):
            known = check_stream(db, path, schema)
            if schema.open is not None and (stored := side_tables.read_classes(db)):
                schema.open.load(stored)
        if not known and not readonly:
            with database.transaction(db, path):
                write_stream(db, schema)

    def close(self) -> None:
        """Close the connection; nothing is lost without it."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- writing ---------------------------------------------------------------------------

    def commit(
        self,
        samples: Batch | None = None,
        labels: Sequence[LabelUpdate] = (),
        quarantined: Sequence[Rejected] = (),
        packets: Iterable[tuple[int, int]] = (),
        opened: OpenWindowChanges | None = None,
        joined: JoinChanges | None = None,
        imported: ImportProgress | None = None,
    ) -> None:
        """Store everything in one transaction; on the disk when this returns.

        Samples that are too old go in the same transaction, and the oldest make room where the cap
        would be passed.

        New `samples` have offsets from `next_offset` on, rising; their checksums in `packets` must be below
        `2**47`. `labels` are for stored samples or for those of this call: a second label of a sample
        replaces the first and leaves its position in label order; one that was contradicted more than
        `relabels` times is withdrawn. `quarantined` messages were refused. `packets` are those of this call's
        other messages (labels, readings of windows), for `recent_packets`. `opened` is what changes about
        windows that are not yet samples, `joined` about the values that samples are joined from.
        `imported` is how far the file is of which these samples are.

        Raises StorageError when nothing at all was stored: the messages must not be acknowledged.
        """
        with self._noting_damage(), self._lock:
            self._wal.keep_short(self._db)
            with self._writing() as (tally, evicting):
                self._make_room(tally, evicting, samples, quarantined, opened, joined)
                if samples is not None and len(samples):
                    self._insert(samples, tally)
                if opened is not None:
                    side_tables.write_windows(self._db, opened)
                if joined is not None:
                    side_tables.write_joins(self._db, joined)
                if imported is not None:
                    side_tables.write_import(self._db, imported)
                if labels:
                    values = encoded([label.label for label in labels], self._schema)
                    labelling.apply(self._db, labels, values, tally, self._limits.relabels)
                if quarantined:
                    side_tables.write_rejections(self._db, quarantined, self._limits.quarantine_rows)
                    tally.quarantined += len(quarantined)
                refused = [r.packet for r in quarantined if r.packet]
                self._remember([*refused, *packets], tally.next_offset)

    def _store_classes(self) -> int:
        """Store classes that have come, in the transaction of their first labels; their revision."""
        classes = self._schema.open
        if classes is None:
            return 0
        revision = classes.revision
        if revision != self._classes_stored:
            side_tables.write_classes(self._db, classes.rows())
        return revision

    @contextmanager
    def changing_classes(self) -> Iterator[OpenClasses]:
        """Change the classes of now: durable when this returns, or not at all.

        Raises RefusedError where they are those of the configuration, or a change is refused.
        """
        classes = self._schema.open
        if classes is None:
            raise RefusedError(
                "the classes of this stream are fixed", where="stream.max_classes", remedy="set this key"
            )
        with self._lock, classes.changing(), self._writing():
            yield classes

    def open_windows(self) -> OpenWindows:
        """Read the windows that are not yet samples."""
        with self._noting_damage(), self._reading():
            try:
                return side_tables.read_windows(self._db)
            except (TypeError, ValueError) as problem:
                what = f"an open window is damaged: {problem}"
                raise CorruptError(what, where=str(self._path)) from problem

    def joined_values(self) -> dict[str, array[float]]:
        """Read the newest values of every key, as `Joining` stores them, without those that are damaged."""
        with self._noting_damage(), self._reading():
            return side_tables.read_states(self._db)

    def held_labels(self) -> dict[str, HeldLabel]:
        """Read the labels that hold, without those that are damaged."""
        with self._noting_damage(), self._reading():
            return side_tables.read_held(self._db)

    @contextmanager
    def _noting_damage(self) -> Iterator[None]:
        """Without this, ingest would read again and again what cannot be read."""
        try:
            yield
        except CorruptError as problem:
            self.damage = problem
            raise

    def evict(self, now: float, *, limit: int = _EVICT_ROWS) -> int:
        """Evict what is too old or too much, at most about `limit` samples; how many went.

        Commits evict by themselves: this is for times without samples, and for a cap that was lowered, after
        which it also shrinks the file. To be called now and then, and again while it returns anything.
        """
        with self._lock:
            evicting = self._evicting
            if evicting is None:
                return 0
            if self._secure and time.monotonic() >= self._clean_at:
                self._clean_at = time.monotonic() + CLEAN_SECONDS
                self._wal.start_over(self._db)
            if not self._due(evicting, now):
                return 0
            with self._writing() as (tally, evicting):
                gone = evicting.expire(self._db, tally, now, limit)
                if gone < limit:
                    gone += evicting.make_room(self._db, tally, 0, max(1, (limit - gone) // 4))
            database.compact(self._db, self._path, evicting.limit_pages)
        return gone

    def _due(self, evicting: Eviction, now: float) -> bool:
        """Whether there is anything to evict: asked after each commit, so it must not cost another one."""
        with self._reading():
            return evicting.due(self._db, now)

    def erase(self, *, samples: bool = False, labels: bool = False) -> dict[str, int]:
        """Erase all samples, or their labels alone, so that none of their bytes stays in the files.

        Offsets and positions in label order continue where they were; what was erased counts as evicted.
        Refused messages go in either case: they may hold samples and labels. Returns how many `samples`,
        `labels` and `quarantined` messages went.

        Raises StorageError when something still reads, or the disk has no room for the rewriting. What was
        deleted stays deleted; its bytes may still be there: do it again.
        """
        with self._lock:
            with self._writing() as (tally, evicting):
                gone = eviction.clear(self._db, tally, samples=samples, labels=labels)
                self._sources.clear()
                evicting.forget_position()
            database.rewrite(self._db, self._path)
        return gone

    def continue_from(self, offset: int, seq: int) -> None:
        """Give `offset` to the next sample and position `seq` to the next label, behind those of a lost log.

        StorageError when this log has given numbers of its own.
        """
        with self._writing() as (tally, _):
            if (tally.next_offset, tally.next_seq) != (1, 1):
                raise StorageError("the log has its own numbering", where=str(self._path))
            tally.next_offset, tally.next_seq = offset, seq

    def drop_damaged(self, seconds: float) -> int:
        """Delete samples that are not what was written, the newest first, for so long; how many.

        What is not reached is checked when it is read.
        """
        until, size, doomed = time.monotonic() + seconds, 4 * self._schema.measured, []
        with self._reading():
            for offset, *row in self._db.execute(
                f"SELECT offset, {CHECKED} FROM samples ORDER BY offset DESC"
            ):
                if not is_whole(row, size):
                    doomed.append((offset,))
                if time.monotonic() > until:
                    break
        if doomed:
            with self._writing() as (tally, _):
                self._db.execute("REINDEX samples")  # it may name values that the rows no longer have
                self._db.executemany("DELETE FROM samples WHERE offset = ?", doomed)
                tally.rows = self._db.execute("SELECT count(*) FROM samples").fetchone()[0]
                tally.evicted += len(doomed)
                tally.holdout_labels = self._db.execute(
                    "SELECT count(*) FROM samples WHERE label_seq IS NOT NULL AND holdout = 1"
                ).fetchone()[0]
        return len(doomed)

    def protect(self, offsets: NDArray[np.int64] | Iterable[int]) -> None:
        """Replace the replay memory: its samples are evicted only when nothing else is left."""
        with self._writing() as (_, evicting):
            eviction.protect(self._db, (int(offset) for offset in offsets))
            evicting.forget_position()

    def exclude(self, offsets: Sequence[int]) -> None:
        """Exclude these samples from learning and evaluation, until they are included or labelled again."""
        with self._writing() as (tally, _):
            labelling.exclude(self._db, offsets, tally)

    def include(self, key: str, first: int) -> int:
        """Learn from what was set aside of a key after all, from offset `first` on; how many samples."""
        with self._writing() as (tally, _):
            return labelling.include(self._db, key, first, tally)

    @contextmanager
    def looking(self) -> Iterator[sqlite3.Connection]:
        """Read tables at one moment."""
        with self._reading():
            yield self._db

    @contextmanager
    def changing(self, need: int) -> Iterator[tuple[sqlite3.Connection, SampleCounts]]:
        """Change labels in a transaction of its own, with room for about `need` bytes; the counts, too."""
        with self._lock:
            self._wal.keep_short(self._db)
            with self._writing() as (tally, evicting):
                evicting.make_room(self._db, tally, need, 500)
                yield self._db, tally

    @contextmanager
    def _writing(self) -> Iterator[tuple[SampleCounts, Eviction]]:
        """Open a transaction that keeps the counts exact, and stores the classes that have come."""
        evicting = self._evicting
        if evicting is None:
            raise StorageError("the sample log was opened for reading only", where=str(self._path))
        done = False
        with self._lock:
            try:
                with database.transaction(self._db, self._path):
                    tally = SampleCounts.read(self._db)
                    yield tally, evicting
                    revision = self._store_classes()
                    tally.write(self._db)
                self._classes_stored, done = revision, True
            finally:
                # Whether it came through or not: what is stored is read again. Without a read after each
                # commit the write-ahead log outgrows its budget while another process reads windows.
                self._held_counts = None
                if not done:
                    self._sources.clear()
                    evicting.forget_position()

    def _tally(self) -> SampleCounts:
        """Read the counts; the writer reads its own once after each transaction, for those beside it, too."""
        if self._beside is not None:
            return self._beside._tally()  # noqa: SLF001
        if self._evicting is None:
            return super()._tally()
        counted = self._held_counts
        if counted is None:
            with self._lock:
                self._held_counts = counted = super()._tally()
        return counted

    def _make_room(
        self,
        tally: SampleCounts,
        evicting: Eviction,
        samples: Batch | None,
        quarantined: Sequence[Rejected],
        opened: OpenWindowChanges | None,
        joined: JoinChanges | None,
    ) -> None:
        rows, need = 0, 0
        if samples is not None and len(samples):
            rows = len(samples)
            need = rows * eviction.row_bytes(self._schema.width, self._schema.targets)
            need += sum(map(len, samples.keys))
            # Twice as many may go as come, so that age holds at any rate and no commit takes long.
            evicting.expire(self._db, tally, float(samples.ingested[-1]), max(2 * rows, 500))
        if opened is not None:
            need += side_tables.bytes_of_windows(opened, self._schema.channels)
        if joined is not None:
            need += side_tables.bytes_of_joins(joined)
        kept = quarantined[-self._limits.quarantine_rows :]
        need += sum(min(len(r.payload), side_tables.PAYLOAD_BYTES) + 256 for r in kept)
        evicting.make_room(self._db, tally, need, max(2 * rows, 500))

    def _insert(self, batch: Batch, tally: SampleCounts) -> None:
        n = len(batch)
        check_rows(batch, tally.next_offset, self._schema.width, self._path)
        holdout = is_holdout(batch.offsets, self._limits.holdout)
        labelled = labelled_rows(batch, self._schema)
        insert(
            self._db, batch, holdout=holdout, labels=encoded(batch.labels, self._schema),
            positions=positions(labelled, tally.next_seq), sources=self._numbers_of(batch.sources),
        )  # fmt: skip
        count = int(labelled.sum())
        tally.next_offset = int(batch.offsets[-1]) + 1
        tally.next_seq += count
        tally.samples += n
        tally.rows += n
        tally.labels += count
        tally.holdout_labels += int((labelled & holdout).sum())

    def _numbers_of(self, sources: Sequence[str]) -> dict[str, int]:
        """Return the numbers of these sources, and perhaps of others; none where there is no source."""
        named = {source for source in sources if source}
        if not named <= self._sources.keys():
            if len(self._sources) > MOST_SOURCES:
                self._sources.clear()
            self._sources |= numbers_of(self._db, named)
        return self._sources if named else {}

    def _remember(self, packets: list[tuple[int, int]], next_offset: int) -> None:
        if packets:
            rows = [(next_offset, packet) for packet in packed(packets)]
            self._db.executemany("INSERT INTO packets (next_offset, packet) VALUES (?, ?)", rows)
            self._db.execute(
                "DELETE FROM packets WHERE number <= (SELECT max(number) FROM packets) - ?",
                (self._limits.packets_kept,),
            )
