"""outbox.db: messages that wait for the broker, bounded in bytes and age, given out in order of priority."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice, takewhile
from pathlib import Path

from edged.clock import Clock
from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
from edged.domain.commands.rules import CLOCK_SET
from edged.errors import CorruptError, StorageError
from edged.logs import get_logger
from edged.storage.files.atomic import remove_files
from edged.storage.files.damaged_database import database_files, rename_damaged
from edged.storage.files.database import (
    PAGE_SIZE,
    connect,
    file_pages,
    transaction,
    translated,
)
from edged.storage.files.database import used_pages as used
from edged.storage.outbox import tables
from edged.storage.outbox.space import CACHE_KIB, OutboxSpace, fold_wal, pages_of, reserve_wal
from edged.storage.outbox.tables import Key, OutboxBacklog, total

DATABASE = "outbox.db"
_ROWS = 1000  # in one transaction at most
_FREE_PAGES = 256  # kept in the file; what is free beyond goes back to the file system

log = get_logger("edged.outbox")


class Outbox:
    """A bounded, durable queue; made by `Outbox.open`. Safe to use from several threads.

    A message is *held* from the moment it was taken (or put with `held`) until it is removed: it
    is not given out a second time and makes no room for others. Holding is not durable: after a
    restart every message waits again.
    """

    def __init__(
        self, db: sqlite3.Connection, path: Path, space: OutboxSpace, max_age: float, clock: Clock
    ) -> None:
        self._lock = threading.RLock()
        self._space = space
        self._max_age = max_age
        self._clock = clock
        self._path = path
        self._next = dict.fromkeys(MessageKind, 1)
        self._held: dict[Key, int] = {}
        self._adopt(db)

    @classmethod
    def open(cls, path: Path, *, max_bytes: int, max_age: float, clock: Clock) -> Outbox:
        """Open the outbox, creating it where there is none. A damaged one is set aside.

        File, write-ahead log and shared memory together have at most `max_bytes`, 1 MiB at least; a message
        is given up after `max_age` seconds. The wall time of `clock` counts while nothing runs, its monotonic
        time otherwise: a clock that is set meanwhile makes no message older.

        Raises StorageError when it cannot be opened or written.
        """
        space = OutboxSpace(path, max_bytes)
        try:
            return cls(_connected(path, space), path, space, max_age, clock)
        except CorruptError as problem:
            _set_aside(path, problem, clock)
            return cls(_connected(path, space), path, space, max_age, clock)

    def _adopt(self, db: sqlite3.Connection) -> None:
        with ExitStack() as unless_read, translated(self._path):
            unless_read.callback(self._space.release)
            unless_read.callback(db.close)
            self._counts = tables.read_counts(db)
            for kind in MessageKind:
                self._next[kind] = max(self._next[kind], tables.last_number(db, kind) + 1)
            age, wall = tables.read_clock(db)
            unless_read.pop_all()
        away = max(0.0, self._clock.now() - wall) if wall > CLOCK_SET else 0.0
        self._began = age + away - self._clock.monotonic()
        self._given = dict.fromkeys(MessageKind, 0)  # of each kind, the last number that was given out
        self._db = db

    def start_over(self, problem: CorruptError) -> None:
        """Set the damaged file aside and continue with an empty one.

        Raises StorageError when that cannot be written.
        """
        with self._lock:
            self._db.close()
            self._space.release()
            _set_aside(self._path, problem, self._clock)
            self._held.clear()
            self._adopt(_connected(self._path, self._space))

    def erase(self) -> int:
        """Delete the file and begin an empty one; return how many messages went.

        Raises StorageError when the disk refuses.
        """
        with self._lock:
            count = self.waiting.pending
            self._db.close()
            self._space.release()
            try:
                remove_files(database_files(self._path))
            finally:
                self._held.clear()
                self._adopt(_connected(self._path, self._space))
        return count

    def close(self) -> None:
        """Close the connection; nothing is lost without it."""
        with self._lock:
            self._db.close()
            self._space.release()

    @property
    def waiting(self) -> OutboxBacklog:
        """What waits, what is held included; costs no look at the disk."""
        return total(self._counts)

    @property
    def takeable(self) -> int:
        """How many waiting messages are not held for sending."""
        return self.waiting.pending - len(self._held)

    def accepts(self, bulk: Sequence[OutboxMessage]) -> bool:
        """Whether messages that belong together are small enough to be stored together."""
        sizes = [parcel.size for parcel in bulk]
        return max(sizes, default=0) <= self._space.slice_bytes and sum(sizes) <= self._space.bulk_bytes

    # ---- putting -------------------------------------------------------------------------------

    def put(self, parcels: Sequence[tuple[OutboxMessage, bool]]) -> list[Key | None]:
        """Keep messages, each with whether it is held; on the disk when this returns.

        Returns the keys of the first so many of `parcels`; None for one that was given up itself.

        Where there is no room, the oldest of the lowest priority go, which is counted; never for
        the sake of a lower one. Takes as many as fit into one transaction.

        Raises StorageError when nothing was kept. On a full disk own messages of this or a lower priority
        were tried to be overwritten before.
        """
        count, size = 0, 0
        for parcel, _ in parcels[:_ROWS]:
            size += parcel.size
            if count and size > self._space.slice_bytes:
                break
            count += 1
        with self._lock:
            try:
                return self._put(parcels[:count])
            except CorruptError:
                raise
            except StorageError:
                self._space.full(self._db, self._clock.monotonic())
                return self._put(parcels[:count])

    def _put(self, parcels: Sequence[tuple[OutboxMessage, bool]]) -> list[Key | None]:
        keys: list[Key | None] = [None] * len(parcels)
        with self._writing():
            for kind in MessageKind:
                mine = [i for i, (parcel, _) in enumerate(parcels) if parcel.kind is kind]
                if mine:
                    self._insert(kind, mine, parcels, keys)
        for (parcel, held), key in zip(parcels, keys, strict=True):
            if key is not None and held:
                self._held[key] = parcel.size
        return keys

    def _insert(
        self,
        kind: MessageKind,
        mine: list[int],
        parcels: Sequence[tuple[OutboxMessage, bool]],
        keys: list[Key | None],
    ) -> None:
        """Write those of one kind, the newest at any rate."""
        before = len(mine)
        mine = [i for i in mine if parcels[i][0].size <= self._space.slice_bytes]
        limit = self._space.limit(self._clock.monotonic(), file_pages(self._db))
        self._make_room(kind, pages_of(parcels[i][0].size for i in mine), limit)
        while mine and used(self._db) + pages_of(parcels[i][0].size for i in mine) > limit:
            mine.pop(0)
        for i in mine:
            keys[i] = Key(kind, self._next[kind])
            self._next[kind] += 1
        new = [(key.number, parcels[i][0]) for i in mine if (key := keys[i]) is not None]
        tables.insert(self._db, kind, new, self._age())
        size = sum(parcel.size for _, parcel in new)
        self._count(kind, pending=len(new), size=size, dropped=before - len(new))

    def _make_room(self, kind: MessageKind, need: int, limit: int) -> None:
        """Give up messages of this and of lower priorities until `need` pages are free."""
        while (excess := used(self._db) + need - limit) > 0:
            if not any(
                self._give_up(lower, excess * PAGE_SIZE) for lower in reversed(MessageKind) if lower >= kind
            ):
                return

    def _give_up(self, kind: MessageKind, size: int) -> int:
        """Delete the oldest of one kind that are not held, about `size` bytes; return their number."""
        given_up: list[tables.OutboxRow] = []
        with closing(tables.rows(self._db, kind, self._given[kind])) as found:
            for row in found:
                # Without one of its parts a weight update is worth nothing.
                whole = kind is not MessageKind.WEIGHTS or (
                    given_up[-1:] and given_up[-1].update != row.update
                )
                if (size <= 0 and whole) or len(given_up) == _ROWS:
                    break
                if Key(kind, row.number) not in self._held:
                    given_up.append(row)
                    size -= row.size
        self._delete(kind, [(row.number, row.size) for row in given_up], dropped=True)
        return len(given_up)

    def _delete(self, kind: MessageKind, rows: Sequence[tuple[int, int]], *, dropped: bool) -> None:
        if rows:
            tables.delete(self._db, kind, [number for number, _ in rows])
            size = sum(length for _, length in rows)
            self._count(kind, pending=-len(rows), size=-size, dropped=len(rows) * dropped)

    def _count(self, kind: MessageKind, *, pending: int, size: int, dropped: int) -> None:
        old = self._counts[kind]
        self._counts[kind] = OutboxBacklog(old.pending + pending, old.bytes + size, old.dropped + dropped)

    def lost(self, kind: MessageKind, count: int) -> None:
        """Count messages that were given up before they came here; written with the next transaction."""
        with self._lock:
            self._count(kind, pending=0, size=0, dropped=count)

    # ---- giving out ----------------------------------------------------------------------------

    def reserve(self, count: int, max_bytes: int) -> list[tuple[Key, OutboxMessage]]:
        """The next to send, held from now on: at most `count` and, but for the first, `max_bytes`."""
        reserved: list[tuple[Key, OutboxMessage]] = []
        size = 0
        with self._lock, translated(self._path):
            for kind in MessageKind:
                for key, parcel in self._next_of(kind, count - len(reserved)):
                    size += parcel.size
                    if reserved and size > max_bytes:
                        return reserved
                    reserved.append((key, parcel))
                    self._held[key] = parcel.size
                    self._given[kind] = key.number
        return reserved

    def _next_of(self, kind: MessageKind, count: int) -> list[tuple[Key, OutboxMessage]]:
        if not count or not self._counts[kind].pending:
            return []
        with closing(tables.parcels(self._db, kind, self._given[kind])) as found:
            return list(islice((entry for entry in found if entry[0] not in self._held), count))

    def release(self, key: Key) -> None:
        """A message that was taken could not be sent: it is the next one again."""
        with self._lock:
            self._held.pop(key, None)
            self._given[key.kind] = min(self._given[key.kind], key.number - 1)

    def remove(self, keys: Sequence[Key]) -> None:
        """The broker has these messages, which were held; gone from the disk when this returns.

        Raises StorageError when nothing was removed: call it again.
        """
        with self._lock:
            sizes = {key: self._held[key] for key in keys if key in self._held}
            if not sizes:
                return
            with self._writing():
                for kind in MessageKind:
                    rows = [(key.number, size) for key, size in sizes.items() if key.kind is kind]
                    self._delete(kind, rows, dropped=False)
            for key in sizes:
                del self._held[key]

    # ---- keeping within bounds -----------------------------------------------------------------

    def tidy(self) -> int:
        """Give up what is too old or, on a disk that fills up, too much; the number of messages.

        Gives free space back to the file system. To be called every few seconds.

        Raises StorageError when the disk refuses; nothing has changed then.
        """
        before = self.waiting.dropped
        with self._lock, translated(self._path):
            old = {kind: self._too_old(kind) for kind in MessageKind if self._counts[kind].pending}
            limit = self._space.limit(self._clock.monotonic(), file_pages(self._db))
            if any(old.values()) or used(self._db) > limit:
                with self._writing():
                    for kind, rows in old.items():
                        self._delete(kind, rows, dropped=True)
                    self._make_room(MessageKind.EVENT, 0, limit)
            wanted = min(limit, used(self._db) + _FREE_PAGES)
            if file_pages(self._db) > wanted:
                self._space.shrink(self._db, wanted)
        return self.waiting.dropped - before

    def _too_old(self, kind: MessageKind) -> list[tuple[int, int]]:
        """Number and bytes of those that have waited too long; not those that somebody holds."""
        bound = self._age() - self._max_age
        with closing(tables.rows(self._db, kind, self._given[kind])) as found:
            old = takewhile(lambda row: row.age < bound, found)
            return [(row.number, row.size) for row in old if Key(kind, row.number) not in self._held]

    def _age(self) -> float:
        """Seconds that the outbox has existed."""
        return self._began + self._clock.monotonic()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction with the counts in it; what it counted is undone when it fails."""
        fold_wal(self._db, self._path, self._space)
        before, done = dict(self._counts), False
        try:
            with transaction(self._db, self._path):
                yield
                self._space.claim(self._db)
                tables.write_counts(self._db, self._counts, self._age(), self._clock.now())
            done = True
        finally:
            if not done:
                self._counts = before


def _connected(path: Path, space: OutboxSpace) -> sqlite3.Connection:
    db = connect(path, tables.TABLES, tables.FORMAT, wal_bytes=space.wal_bytes // 2, cache_kib=CACHE_KIB)
    with ExitStack() as unless_ready:
        unless_ready.callback(space.release)
        unless_ready.callback(db.close)
        with translated(path):
            space.bind(db)
        try:
            reserve_wal(db, path)
        except CorruptError:
            raise
        except StorageError as problem:
            log.warning("outbox_without_reserve", problem=problem.line())
        unless_ready.pop_all()
    return db


def _set_aside(path: Path, problem: CorruptError, clock: Clock) -> None:
    name = rename_damaged(path, clock.now())
    log.error("outbox_damaged", problem=problem.line(), remedy=f"it is kept as {name}; a new one is begun")
