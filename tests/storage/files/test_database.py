from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from edged.errors import CorruptError, FormatError, RefusedError, StorageError
from edged.storage.files.atomic import DISK, scratch
from edged.storage.files.database import connect, create_tables, require_format, transaction

FIRST = ("CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)")


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


def test_tables_are_created_once(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    for _ in range(3):
        db = connect(path)
        create_tables(db, path, FIRST, 2)
        db.close()
    db = connect(path, readonly=True)
    require_format(db, path, 2)
    assert db.execute("SELECT a FROM t").fetchall() == [(1,)]
    db.close()


def test_tables_that_cannot_be_created_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = connect(path)
    with pytest.raises(StorageError, match="syntax error"):
        create_tables(db, path, (*FIRST, "CREATE NONSENSE"), 1)
    with pytest.raises(StorageError, match="not set up yet"):
        require_format(db, path, 1)
    create_tables(db, path, FIRST, 1)
    assert db.execute("SELECT count(*) FROM t").fetchone() == (1,)
    db.close()


@pytest.mark.parametrize("number", [1, 3])
def test_another_format_is_refused(tmp_path: Path, number: int) -> None:
    path = tmp_path / "a.db"
    db = connect(path)
    create_tables(db, path, FIRST, 2)
    expected = f"a.db: the database has format 2, this edged reads format {number}"
    with pytest.raises(FormatError, match=expected) as told:
        create_tables(db, path, FIRST, number)
    with pytest.raises(FormatError, match=expected):
        require_format(db, path, number)
    assert told.value.exit_code == RefusedError.exit_code, "or systemd would try again for ever"
    db.close()


def test_a_header_that_names_no_format_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = connect(path)
    create_tables(db, path, FIRST, 2)
    for name in ("user_version = 3", "user_version = 0", "application_id = 0"):
        db.execute(f"PRAGMA {name}")
        with pytest.raises(CorruptError, match="names no format"):
            create_tables(db, path, FIRST, 2)
        db.execute("PRAGMA user_version = 2")
    db.close()


def test_a_transaction_that_raises_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    db = connect(path)
    create_tables(db, path, FIRST, 1)
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
    create_tables(db, path, FIRST, 1)
    reader = connect(path, readonly=True)
    with pytest.raises(StorageError, match="give this user write permission"), transaction(reader, path):
        reader.execute("INSERT INTO t VALUES (2)")
    reader.close()
    db.close()


def test_a_reader_works_without_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "with % and ? in it.db"
    db = connect(path)
    create_tables(db, path, FIRST, 1)
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
