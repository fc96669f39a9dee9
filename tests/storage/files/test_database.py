from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from edged.errors import CorruptError, NewerStateError, RefusedError, StorageError
from edged.storage.files.atomic import DISK, scratch
from edged.storage.files.database import connect, migrate, require_version, transaction

FIRST = ("CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)")
SECOND = ("ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 5",)


def insert_two(db: sqlite3.Connection, path: Path, tables: dict[str, str]) -> None:
    with transaction(db, path):
        db.execute("INSERT INTO t VALUES (2)")
        db.execute(f"INSERT INTO {tables['second']} VALUES (2)")  # noqa: S608


def test_commits_are_synced_and_the_file_can_shrink(tmp_path: Path) -> None:
    db = connect(tmp_path / "new" / "a.db")
    settings = {
        name: db.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "auto_vacuum", "cache_size")
    }
    db.close()
    assert settings == {"journal_mode": "wal", "synchronous": 2, "auto_vacuum": 2, "cache_size": -512}


def test_nothing_is_synced_of_what_is_scratch_alone(tmp_path: Path) -> None:
    with scratch():
        before = connect(tmp_path / "a.db")
    after = connect(tmp_path / "b.db")
    found = [db.execute("PRAGMA synchronous").fetchone()[0] for db in (before, after)]
    before.close()
    after.close()
    assert found == [0, 2]
    with pytest.raises(FileNotFoundError):
        DISK.sync(tmp_path / "nowhere")
    with scratch():
        DISK.sync(tmp_path / "nowhere")


def test_migrations_run_once_each(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for steps in ((FIRST,), (FIRST, SECOND), (FIRST, SECOND)):
        db = connect(path)
        migrate(db, path, steps)
        db.close()
    db = connect(path, readonly=True)
    require_version(db, path, 2)
    assert db.execute("SELECT a, b FROM t").fetchall() == [(1, 5)]
    db.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = connect(path)
    with pytest.raises(StorageError, match="syntax error"):
        migrate(db, path, ((*FIRST, "CREATE NONSENSE"),))
    migrate(db, path, (FIRST,))
    assert db.execute("SELECT count(*) FROM t").fetchone() == (1,)
    db.close()


def test_a_newer_file_is_refused_and_an_older_one_for_readers(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = connect(path)
    migrate(db, path, (FIRST, SECOND))
    with pytest.raises(
        NewerStateError, match=r"written by a newer edged \(schema 2, this one knows 1\)"
    ) as told:
        migrate(db, path, (FIRST,))
    assert told.value.exit_code == RefusedError.exit_code, "or systemd would try again for ever"
    with pytest.raises(StorageError, match="older edged"):
        require_version(db, path, 3)
    db.close()


def test_a_transaction_that_raises_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = connect(path)
    migrate(db, path, (FIRST,))
    with pytest.raises(KeyError):
        insert_two(db, path, {})
    with pytest.raises(StorageError, match="no such table"):
        insert_two(db, path, {"second": "nowhere"})
    assert db.execute("SELECT a FROM t").fetchall() == [(1,)]
    db.close()


def test_a_missing_file_is_told_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a.db: there is no such database yet \(start `edged run`"):
        connect(tmp_path / "a.db", readonly=True)


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = connect(path)
    migrate(db, path, (FIRST,))
    reader = connect(path, readonly=True)
    with pytest.raises(StorageError, match="give this user write permission"), transaction(reader, path):
        reader.execute("INSERT INTO t VALUES (2)")
    reader.close()
    db.close()


def test_a_reader_works_without_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "with % and ? in it.db"
    db = connect(path)
    migrate(db, path, (FIRST,))
    db.close()
    reader = connect(path, readonly=True)
    assert reader.execute("SELECT a FROM t").fetchall() == [(1,)]
    reader.close()


@pytest.mark.parametrize("readonly", [True, False])
def test_what_is_no_database_is_damaged(tmp_path: Path, readonly: bool) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"no database at all" * 500)
    with pytest.raises(CorruptError, match=r"a.db: the database is damaged: .*sets the file aside"):
        connect(path, readonly=readonly)


def test_sqlite_is_new_enough_for_what_is_used() -> None:
    assert sqlite3.sqlite_version_info >= (3, 24)
