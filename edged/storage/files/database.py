"""SQLite as edged uses it: write-ahead log, synced at every commit, small in memory.

Every commit is on the disk when it returns (`synchronous=FULL`): with NORMAL a power cut loses
acknowledged rows, although killing the process never shows it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from edged.errors import CorruptError, FormatError, StorageError
from edged.storage.files.atomic import DISK, fsync_directory, make_directory

PAGE_SIZE = 4096
_BUSY_SECONDS = 10.0
CACHE_KIB = 512  # of pages that a connection keeps; half of it where it only reads
WAL_BYTES = 4 * 1024**2

_APPLICATION = 0x65640000  # "ed"; the number of the format is added
_DAMAGE = (
    *("malformed", "not a database", "unsupported file format"),
    *("no such table", "no such column", "duplicate column name"),
)
_REMEDIES = {
    "full": "free some disk space",
    "locked": "another process is writing to it: stop that one",
    "readonly": "give this user write permission",
    "unable to open": "check that the directory exists and this user may write to it",
    "disk I/O error": "check the disk, and the space left on it",
}


def connect(
    path: Path,
    tables: Sequence[str] = (),
    number: int | None = None,
    *,
    readonly: bool = False,
    wal_bytes: int = WAL_BYTES,
    cache_kib: int = CACHE_KIB,
) -> sqlite3.Connection:
    """Open a database in autocommit mode; transactions are begun explicitly.

    The file is created, with its directory, unless `readonly`: only read, beside a running writer or without
    one. Within `atomic.scratch` commits do not wait for the disk. The write-ahead log should not exceed
    `wal_bytes`; its pages move into the file at half of it. Pages of `cache_kib` KiB stay in memory, half as
    many where it only reads.

    With the `number` of a format the database has that one: a new one gets its `tables`.

    Raises StorageError when it is missing (`readonly`) or cannot be opened; CorruptError when it is no
    database; FormatError when it has another format.
    """
    if readonly and not path.exists():
        raise StorageError("there is no such database yet", where=str(path),
                           remedy="start `edged run` first, or check storage.dir")  # fmt: skip
    if not readonly:
        make_directory(path.parent)
    with translated(path):
        db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}", uri=True, timeout=_BUSY_SECONDS,
            isolation_level=None, check_same_thread=False,
        )  # fmt: skip
        # Text that is none is damage of its row, and no reason to end here: what checks the row finds it.
        db.text_factory = _text
        with ExitStack() as unless_opened:
            unless_opened.callback(db.close)
            db.execute(f"PRAGMA cache_size = -{cache_kib // 2 if readonly else cache_kib}")
            _configure(db, readonly, wal_bytes)
            if not readonly:
                # Also where the file was there: its creation may have been cut off before this.
                fsync_directory(path.parent)
            if number is not None and readonly:
                require_format(db, path, number)
            elif number is not None:
                create_tables(db, path, tables, number)
            unless_opened.pop_all()
    return db


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogateescape")


def _configure(db: sqlite3.Connection, readonly: bool, wal_bytes: int) -> None:
    if readonly:
        db.execute("PRAGMA query_only = ON")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the file: fails here or never
        return
    db.execute(f"PRAGMA synchronous = {'FULL' if DISK.durable else 'OFF'}")
    # Both only take effect before the first table exists.
    db.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL").fetchone()
    db.execute(f"PRAGMA wal_autocheckpoint = {max(8, wal_bytes // (2 * PAGE_SIZE))}")
    db.execute(f"PRAGMA journal_size_limit = {wal_bytes}")


def create_tables(db: sqlite3.Connection, path: Path, tables: Sequence[str], number: int) -> None:
    """Create the tables of a new database in format `number`, in one transaction, or check that it has it.

    Raises FormatError when it has another one.
    """
    if not _has_format(db, path, number):
        header = [f"PRAGMA user_version = {number}", f"PRAGMA application_id = {_APPLICATION + number}"]
        with translated(path):
            try:
                # `execute` would keep each statement in memory for its next use.
                db.executescript(";\n".join(["BEGIN IMMEDIATE", *tables, *header, "COMMIT"]))
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")


def require_format(db: sqlite3.Connection, path: Path, number: int) -> None:
    """Check for a reader, which changes nothing, that the database has format `number`.

    Raises FormatError when it has another one; StorageError when it has no tables yet.
    """
    if not _has_format(db, path, number):
        raise StorageError("the database is not set up yet", where=str(path),
                           remedy="start `edged run` once")  # fmt: skip


def _has_format(db: sqlite3.Connection, path: Path, number: int) -> bool:
    """Check the header, which has the format twice; False for a database without tables."""
    with translated(path):
        found = int(db.execute("PRAGMA user_version").fetchone()[0])
        again = int(db.execute("PRAGMA application_id").fetchone()[0])
    if found == again == 0:
        return False
    if again != _APPLICATION + found:
        raise CorruptError("the database is damaged: its header names no format", where=str(path))
    if found != number:
        raise FormatError(f"the database has format {found}, this edged reads format {number}",
                          where=str(path), remedy="install the edged that wrote it")  # fmt: skip
    return True


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into StorageError or CorruptError, with the file and a remedy."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as problem:
        # SQLite's message has names as they stand in the file: where they are no text, it is malformed.
        text = str(problem) if isinstance(problem, sqlite3.Error) else "malformed names"
        if any(part in text for part in _DAMAGE):
            raise CorruptError(
                f"the database is damaged: {text}",
                where=str(path),
                remedy="restart `edged run`: it sets the file aside and creates a new one",
            ) from problem
        remedy = next((remedy for part, remedy in _REMEDIES.items() if part in text), "")
        raise StorageError(f"the database refused: {text}", where=str(path), remedy=remedy) from problem


@contextmanager
def transaction(db: sqlite3.Connection, path: Path) -> Iterator[None]:
    """One write transaction: durable when the block ends, undone when it raises."""
    with translated(path):
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        finally:
            # Still open: something was raised, and SQLite has not rolled back by itself.
            if db.in_transaction:
                db.execute("ROLLBACK")


@contextmanager
def snapshot(db: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Several reads of one and the same state."""
    with translated(path):
        db.execute("BEGIN")
        try:
            yield
        finally:
            if db.in_transaction:
                db.execute("ROLLBACK")


def rewrite(db: sqlite3.Connection, path: Path) -> None:
    """Leave nothing in the files of a database but what its tables hold.

    `db` is the only connection that writes, outside a transaction. SQLite leaves deleted rows in free pages,
    in the slack of pages in use and in its write-ahead log: all pages are written again, and the log is cut
    off. What the blocks hold that the files give back is the file system's.

    Raises StorageError when something still reads, or the disk is full.
    """
    with translated(path):
        db.execute("VACUUM")
        busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if busy:
        raise StorageError("the write-ahead log is still being read", where=str(path),
                           remedy="stop the program that reads it, then try again")  # fmt: skip


class WriteAheadLog:
    """Keeps the write-ahead log short where readers follow each other without a gap.

    SQLite starts the log over only in a moment without a reader; without such a
    moment it would grow for ever. Beyond `wal_bytes` the writer waits for the readers of that moment
    (a window takes some 20 ms); those that come meanwhile read from the file.
    """

    PATIENCE_MS = 200

    def __init__(self, path: Path, wal_bytes: int) -> None:
        self._path = path
        self._file = path.with_name(f"{path.name}-wal")
        self._wal_bytes = wal_bytes
        self._limit = wal_bytes

    def keep_short(self, db: sqlite3.Connection) -> None:
        """Between two transactions: start the log over if it has become too long."""
        if size_of(self._file) > self._limit:
            self.start_over(db)

    def start_over(self, db: sqlite3.Connection) -> None:
        """Between two transactions: move the log into the database and cut it off, if its readers let it."""
        with translated(self._path):
            db.execute(f"PRAGMA busy_timeout = {self.PATIENCE_MS}")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            db.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")
        # A reader that hangs must not cost the patience at every commit.
        self._limit = size_of(self._file) + self._wal_bytes


def file_pages(db: sqlite3.Connection) -> int:
    """Pages of the file, the write-ahead log's changes included."""
    return int(db.execute("PRAGMA page_count").fetchone()[0])


def free_pages(db: sqlite3.Connection) -> int:
    """Pages of the file that are empty: they are used again before it grows."""
    return int(db.execute("PRAGMA freelist_count").fetchone()[0])


def used_pages(db: sqlite3.Connection) -> int:
    """Count the pages of the database that are in use."""
    return file_pages(db) - free_pages(db)


def file_bytes(path: Path) -> int:
    """Size of the database and its write-ahead log on the disk."""
    return size_of(path) + size_of(path.with_name(f"{path.name}-wal"))


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def compact(db: sqlite3.Connection, path: Path, limit_pages: int, *, at_most: int = 256) -> None:
    """Give freed pages beyond `limit_pages` back to the file system, a slice at a time."""
    with translated(path):
        surplus = min(file_pages(db) - limit_pages, free_pages(db), at_most)
        if surplus > 0:
            # `execute` would stop after the first page: it steps a statement without columns only once.
            db.executescript(f"PRAGMA incremental_vacuum({surplus})")


def json_list(values: Sequence[object]) -> str:
    """A list as one SQL parameter, for `IN (SELECT value FROM json_each(?))`."""
    return json.dumps(values)
