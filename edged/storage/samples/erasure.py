"""Erasing: what is deleted for good, down to the bytes in the files.

SQLite leaves deleted rows in free pages, in the slack of pages in use and in its write-ahead log. So rows
are deleted, the free pages filled with zeros, the rest rewritten (VACUUM), and the log overwritten before it
is cut off. Files are overwritten with zeros and synced before they are unlinked.

This reaches the blocks that the file system gives for those places in those files. It does not reach copies
that flash memory keeps while levelling its wear, that a journal or a copy-on-write file system has made, that
are in snapshots and backups, or in swap. Where that matters, encrypt the disk and destroy its key.
"""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from edged.errors import StorageError
from edged.storage.files import atomic, database
from edged.storage.samples import side_tables
from edged.storage.samples.rows import WITHDRAWN, checksum_with
from edged.storage.samples.tables import SampleCounts

_FILL_ROW = 1 << 20
_SLICE_ROWS = 8  # so that the write-ahead log stays at some 8 MiB, however large the file is
_ZEROS = bytes(1 << 20)


# ---- rows ----------------------------------------------------------------------------------------


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


def rewrite(db: sqlite3.Connection, path: Path, *, alone: bool) -> None:
    """Leave nothing in the database's files but what its tables hold.

    `db` is the only connection that writes, outside a transaction. With `alone` no other process has
    the database open: then the part of the file that is cut off is overwritten first. Without, its free pages
    are, which is everything but the slack between live rows.

    Raises StorageError when a reader stays, or the disk is full.
    """
    with database.translated(path):
        before = [
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("secure_delete", "wal_autocheckpoint")
        ]
        db.execute("PRAGMA secure_delete = ON")
        db.execute("PRAGMA wal_autocheckpoint = 0")
    try:
        overwrite_log(db, path)
        _fill_free_pages(db, path)
        with database.translated(path):
            db.execute("VACUUM")
        if alone:
            # The newest state of every page that stays is in the log alone, so nothing reads these.
            _zero(path, database.file_pages(db) * database.PAGE_SIZE)
        overwrite_log(db, path)
    finally:
        with database.translated(path):
            db.execute(f"PRAGMA secure_delete = {before[0]}")
            db.execute(f"PRAGMA wal_autocheckpoint = {before[1]}")


def _fill_free_pages(db: sqlite3.Connection, path: Path) -> None:
    """Write zeros into every page that is free: with rows of zeros, which are deleted again."""
    if database.free_pages(db) == 0:
        return
    with database.transaction(db, path):
        db.execute("CREATE TABLE IF NOT EXISTS erased (zeros BLOB)")
    while database.free_pages(db):
        with database.transaction(db, path):
            size = min(_FILL_ROW, database.free_pages(db) * database.PAGE_SIZE)
            db.executemany("INSERT INTO erased VALUES (zeroblob(?))", [(size,)] * _SLICE_ROWS)
        overwrite_log(db, path)
    while db.execute("SELECT 1 FROM erased LIMIT 1").fetchone():
        with database.transaction(db, path):
            db.execute("DELETE FROM erased WHERE rowid IN (SELECT rowid FROM erased LIMIT ?)", (_SLICE_ROWS,))
        overwrite_log(db, path)
    with database.transaction(db, path):
        db.execute("DROP TABLE erased")


def overwrite_log(db: sqlite3.Connection, path: Path) -> None:
    """Move the write-ahead log into the database, overwrite it with zeros and cut it off.

    Raises StorageError when something still reads from the log.
    """
    if not _log_overwritten(db, path):
        raise StorageError("the write-ahead log is still being read", where=str(path),
                           remedy="stop the program that reads it, then try again")  # fmt: skip


def _log_overwritten(db: sqlite3.Connection, path: Path) -> bool:
    """Whether it could be done: a reader may be in the way."""
    with database.translated(path):
        if db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0]:
            return False
        # All of it is in the database now: the next writer starts it over.
        _zero(path.with_name(f"{path.name}-wal"))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return True


class Scrubber:
    """Keeps deleted rows out of a database in use: zeros in their place, and in the log every minute."""

    EVERY = 60.0

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._due = time.monotonic() + self.EVERY
        with database.translated(path):
            db.execute("PRAGMA secure_delete = ON")

    def keep_clean(self) -> None:
        """Between two transactions: overwrite the log, when it is time and there is no reader."""
        if time.monotonic() >= self._due:
            self.now()

    def now(self) -> None:
        """Overwrite the log if it has no reader at this moment; else a minute later."""
        self._due = time.monotonic() + self.EVERY
        with database.translated(self._path):
            patience = self._db.execute("PRAGMA busy_timeout").fetchone()[0]
            self._db.execute(f"PRAGMA busy_timeout = {database.WriteAheadLog.PATIENCE_MS}")
            try:
                _log_overwritten(self._db, self._path)
            finally:
                self._db.execute(f"PRAGMA busy_timeout = {patience}")


# ---- files ---------------------------------------------------------------------------------------


def erase_files(paths: Iterable[Path]) -> int:
    """Overwrite files, and all files in directories, with zeros, then remove them; how many files went.

    Missing ones are fine. A symbolic link is removed, what it points to is left alone.

    Raises StorageError when the disk refuses; what is left can be erased by another call.
    """
    count = 0
    for path in paths:
        if not path.is_symlink() and not path.exists():
            continue
        inside = sorted(path.rglob("*")) if path.is_dir() and not path.is_symlink() else [path]
        for file in inside:
            if not file.is_symlink() and stat.S_ISREG(file.stat().st_mode):
                _zero(file)
                count += 1
        with atomic.disk_errors("removing", path):
            atomic.DISK.remove(path)
        atomic.fsync_directory(path.parent)
    return count


def erase_published(directory: Path) -> int:
    """Erase a published directory so that no half of it can ever be seen; how many files went."""
    doomed = atomic.staging_path(directory.parent, directory.name)
    with atomic.disk_errors("removing", directory):
        atomic.DISK.rename(directory, doomed)
        atomic.DISK.sync(directory.parent)
    return erase_files([doomed])


def _zero(path: Path, start: int = 0) -> None:
    """Overwrite a file from `start` to its end, in place and durably; a missing one is fine."""
    with atomic.disk_errors("overwriting", path):
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        try:
            size = os.fstat(descriptor).st_size
            for place in range(start, size, len(_ZEROS)):
                os.pwrite(descriptor, _ZEROS[: size - place], place)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
