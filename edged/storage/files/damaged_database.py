"""Damaged databases and files: found at the start, and set aside under a dated name.

What is damaged is never written to again and never deleted at once: a new one is begun in its place, and the
newest `KEPT` of those set aside stay.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from edged.errors import StorageError
from edged.storage.files.atomic import DISK, Disk, disk_errors

KEPT = 3
_MAGIC = b"SQLite format 3\x00"
_MARK = ".damaged-"
_BLOCK = 1 << 20


def damage(path: Path, seconds: float) -> str | None:
    """Return what is wrong with a database that is not open; None when nothing was found in `seconds`.

    The header is always looked at. `PRAGMA quick_check` goes through the pages until the time is up:
    what lies behind is found when it is used.

    Raises StorageError when the database cannot be opened for a reason that is not in its content: a disk
    that is full or read-only, missing permission.
    """
    if not path.exists():
        rest = path.with_name(f"{path.name}-wal")
        return "only its write-ahead log is there" if rest.exists() and rest.stat().st_size else None
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError as problem:
        return f"cannot be read: {problem.strerror}"
    # With a rollback journal the file is not what counts: SQLite puts it back first.
    if head and head != _MAGIC and not path.with_name(f"{path.name}-journal").exists():
        return "the header is not SQLite's"
    try:
        return _quick_check(path, seconds)
    except sqlite3.Error as problem:
        return _in_content(path, problem)
    except UnicodeDecodeError:  # SQLite's message has it as it stands in the file
        return "a name in its schema is no text"


def _quick_check(path: Path, seconds: float) -> str | None:
    """What the check says; None when it says nothing until it is interrupted."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.text_factory = partial(str, encoding="utf-8", errors="replace")  # it names what may be no text
        # A timer and not a progress handler: the check of a whole table is one instruction.
        late = threading.Event()

        def cut_short() -> None:
            late.set()
            db.interrupt()

        timer = threading.Timer(seconds, cut_short)
        timer.start()
        try:
            found = db.execute("PRAGMA quick_check(1)").fetchone()
            _try_to_write(db)
        except sqlite3.OperationalError as problem:
            if str(problem) == "interrupted":
                return None
            raise
        finally:
            timer.cancel()
            timer.join()
    if found == ("ok",) or late.is_set():  # cut short it may speak of pages that it did not come to
        return None
    return f"quick_check: {' '.join(str(found[0]).split())}"


def _try_to_write(db: sqlite3.Connection) -> None:
    """Two bytes of the header say whether the file may be written."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("ROLLBACK")


def _in_content(path: Path, problem: sqlite3.Error) -> str:
    """What the error says of the content; raised as StorageError where it says nothing of it."""
    if not isinstance(problem, sqlite3.OperationalError):
        return str(problem)  # malformed, not a database
    readonly = "readonly" in str(problem) and os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if readonly or "unsupported" in str(problem):
        return str(problem)
    if "I/O" in str(problem):
        try:
            with path.open("rb") as file:
                while file.read(_BLOCK):
                    pass
        except OSError as unreadable:
            return f"cannot be read: {unreadable.strerror}"
    raise StorageError(f"the database cannot be opened: {problem}", where=str(path),
                       remedy="check the disk, its free space and the permissions") from problem  # fmt: skip


def database_files(path: Path) -> list[Path]:
    """The files of a database: itself, its logs, and the index of its write-ahead log."""
    return [path.with_name(f"{path.name}{end}") for end in ("", "-wal", "-shm", "-journal")]


def rename_damaged(path: Path, now: float, *, disk: Disk = DISK) -> str:
    """Rename a damaged database with its logs, or a damaged file or directory, durably; return the new name.

    It must not be open; `now` is Unix seconds, for the name.

    Raises StorageError when the disk refuses.
    """
    name = _free_name(path, now)
    with disk_errors("setting what is damaged aside", path):
        # The database first: its log alone cannot be taken for a database, and is set aside, too.
        for suffix in ("", "-wal", "-journal"):
            file = path.with_name(path.name + suffix)
            if file.exists():
                disk.rename(file, path.with_name(name + suffix))
        disk.remove(path.with_name(f"{path.name}-shm"))
        disk.sync(path.parent)
        _forget_oldest(path, name, disk)
    return name


def _free_name(path: Path, now: float) -> str:
    name = f"{path.name}{_MARK}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
    taken = {file.name for file in path.parent.glob(f"{name}*")}
    numbered = (f"{name}.{number}" for number in range(2, len(taken) + 3))
    return name if not taken else next(n for n in numbered if not any(t.startswith(n) for t in taken))


def _forget_oldest(path: Path, newest: str, disk: Disk) -> None:
    """Keep the newest `KEPT`; by the time in the name, and what was set aside now in any case."""
    files = sorted(path.parent.glob(f"{path.name}{_MARK}*"))
    names = sorted({file.name.removesuffix("-wal").removesuffix("-journal") for file in files} - {newest})
    for name in names[: max(0, len(names) - (KEPT - 1))]:
        for suffix in ("", "-wal", "-journal"):
            disk.remove(path.with_name(name + suffix))
