"""How much of the disk the outbox may have: a hard cap, and less where the disk is nearly full."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from edged.errors import StorageError
from edged.storage.files.atomic import disk_errors
from edged.storage.files.database import PAGE_SIZE, compact, file_pages, size_of, transaction, translated

_WAL_BYTES = 4 * 1024**2
_FOLD_BYTES = 256 * 1024  # the write-ahead log is folded into the file when it has so much
_SHARED_BYTES = 32 * 1024  # of SQLite's index of the write-ahead log
CACHE_KIB = 256
_RESERVE = 16 * 1024**2  # free on the disk, or a tenth of it where that is less
_FLOOR = 1024**2  # what the outbox keeps on a full disk
_FULL_SECONDS = 60.0
_RESERVED_BYTES = 64 * 1024
_BUSY_MS = 1000
_ROW_BYTES = 40  # of a row, beside topic and payload
_LOCAL_BYTES = PAGE_SIZE - 100  # a row of this size has a page of its own


class OutboxSpace:
    """The bounds of one outbox file.

    The write-ahead log gets a quarter of the cap. It holds at most half of its share before a
    transaction, and no transaction writes more than the other half.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self.wal_bytes = min(_WAL_BYTES, max_bytes // 4)
        self.slice_bytes = self.wal_bytes // 4
        self.bulk_bytes = max_bytes // 2
        self._cap = (max_bytes - self.wal_bytes - _SHARED_BYTES) // PAGE_SIZE
        self._file: int | None = None
        self._frozen: tuple[float, int] | None = None

    @property
    def wal(self) -> Path:
        """Path of the write-ahead log."""
        return self._path.with_name(f"{self._path.name}-wal")

    def bind(self, db: sqlite3.Connection) -> None:
        """Have SQLite itself refuse to go beyond the cap, and not write what was freed."""
        db.execute(f"PRAGMA max_page_count = {self._cap}").fetchone()
        db.execute("PRAGMA secure_delete = OFF").fetchone()
        db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}").fetchone()
        pages = min(self.wal_bytes // 4, _FOLD_BYTES) // PAGE_SIZE
        db.execute(f"PRAGMA wal_autocheckpoint = {pages}").fetchone()
        # Held open as long as the database: closing it would take SQLite's locks away.
        with disk_errors("opening", self._path):
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)

    def release(self) -> None:
        """Stop counting: the database is closed."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def claim(self, db: sqlite3.Connection) -> None:
        """Before a commit: take the disk space of the pages that it adds to the file.

        So that folding the write-ahead log into the file needs none, on a disk that is full by then.

        Raises StorageError when there is none.
        """
        size = file_pages(db) * PAGE_SIZE
        if self._file is not None and size > os.fstat(self._file).st_size:
            with disk_errors("growing", self._path):
                os.posix_fallocate(self._file, 0, size)

    def full(self, db: sqlite3.Connection, now: float) -> None:
        """The disk has refused: for a minute the file does not grow, and the log begins at its start."""
        self._frozen = (now + _FULL_SECONDS, size_of(self._path) // PAGE_SIZE)
        restart_wal(db, self._path)

    def shrink(self, db: sqlite3.Connection, pages: int) -> None:
        """Give a slice of the free pages beyond `pages` back to the file system."""
        restart_wal(db, self._path)
        compact(db, self._path, pages, at_most=self.slice_bytes // PAGE_SIZE)
        restart_wal(db, self._path)  # only now the file becomes shorter

    def limit(self, now: float, pages: int) -> int:
        """Pages that may be in use, with `pages` in the file now."""
        limit = self._cap
        if self._frozen is not None and now < self._frozen[0]:
            limit = min(limit, self._frozen[1])
        try:
            disk = shutil.disk_usage(self._path.parent)
        except OSError:
            return limit
        spare = (disk.free - min(_RESERVE, disk.total // 10)) // PAGE_SIZE
        return max(min(limit, _FLOOR // PAGE_SIZE), min(limit, pages + spare))


def pages_of(sizes: Iterable[int]) -> int:
    """Pages that messages of these sizes take at most, and those that a transaction always takes."""
    shared, own = 0, 0
    for size in sizes:
        row = size + _ROW_BYTES
        if row > _LOCAL_BYTES:
            own += row // _LOCAL_BYTES + 2
        elif row > _LOCAL_BYTES // 3:
            own += 1
        else:
            shared += row
    # Rows below a third of a page fill three quarters of it at least.
    return own + math.ceil(shared / (_LOCAL_BYTES * 3 / 4)) + 3


def fold_wal(db: sqlite3.Connection, path: Path, space: OutboxSpace) -> None:
    """Before a transaction: see that the write-ahead log has room for it.

    Raises StorageError when a reader keeps it from being folded into the file.
    """
    if size_of(space.wal) <= space.wal_bytes // 2:
        return
    with translated(path):
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    if size_of(space.wal) > space.wal_bytes // 2:
        raise StorageError("the write-ahead log cannot be folded into the file", where=str(path),
                           remedy="another process reads from it: stop that one")  # fmt: skip


def restart_wal(db: sqlite3.Connection, path: Path) -> None:
    """Fold the write-ahead log into the file, and begin it again without giving its space away."""
    with translated(path):
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


def reserve_wal(db: sqlite3.Connection, path: Path) -> None:
    """Give file and write-ahead log some pages, so that on a full disk rows can still be exchanged."""
    with transaction(db, path):
        db.execute("DROP TABLE IF EXISTS reserve")  # a power cut came between the two transactions
        db.execute("CREATE TABLE reserve (content BLOB)")
        db.execute("INSERT INTO reserve VALUES (zeroblob(?))", (_RESERVED_BYTES,))
    with transaction(db, path):
        db.execute("DROP TABLE reserve")
