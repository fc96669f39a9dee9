from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from edged.errors import StorageError
from edged.storage.files.damaged_database import KEPT, damage, rename_damaged
from tests.storage.disks import TestedDisk

ENOUGH = 30.0
NOW = 1_700_000_000.0


def database(path: Path, rows: int = 2000) -> Path:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB)")
    db.executemany("INSERT INTO t VALUES (?, ?)", [(n, bytes([n % 256]) * 200) for n in range(rows)])
    db.commit()
    db.close()
    return path


def test_a_whole_database_has_no_damage(tmp_path: Path) -> None:
    path = database(tmp_path / "a.db")
    assert damage(path, ENOUGH) is None
    assert damage(tmp_path / "none.db", ENOUGH) is None
    (tmp_path / "empty.db").touch()
    assert damage(tmp_path / "empty.db", ENOUGH) is None


def test_a_cut_off_writer_leaves_no_damage(tmp_path: Path) -> None:
    path = database(tmp_path / "a.db")
    db = sqlite3.connect(path)
    db.execute("INSERT INTO t VALUES (-1, x'00')")
    db.commit()
    assert (tmp_path / "a.db-wal").stat().st_size > 0
    assert damage(path, ENOUGH) is None
    assert db.execute("SELECT count(*) FROM t").fetchone() == (2001,)
    db.close()


@pytest.mark.parametrize("how", ["header", "middle", "cut", "wal_alone"])
def test_damage_is_found(tmp_path: Path, how: str) -> None:
    path = database(tmp_path / "a.db")
    data = bytearray(path.read_bytes())
    if how == "header":
        data[:16] = bytes(16)
    elif how == "middle":
        for start in range(8192, len(data), 4096):  # the head of every page that holds rows
            data[start : start + 64] = b"\xff" * 64
    elif how == "cut":
        del data[len(data) // 2 + 100 :]
    path.write_bytes(data)
    if how == "wal_alone":
        path.rename(tmp_path / "a.db-wal")
    problem = damage(path, ENOUGH)
    assert problem is not None
    assert "\n" not in problem


def test_the_check_is_bounded_in_time(tmp_path: Path) -> None:
    path = database(tmp_path / "a.db", rows=50_000)
    data = bytearray(path.read_bytes())
    data[-4096:-4032] = b"\xff" * 64
    path.write_bytes(data)
    assert damage(path, 0.0) is None, "the last pages are not reached"
    assert damage(path, ENOUGH) is not None


def test_what_a_rollback_journal_puts_back_is_no_damage(tmp_path: Path) -> None:
    """A power cut while the very first page was written: SQLite undoes it by itself."""
    path = tmp_path / "a.db"
    path.write_bytes(bytes(512))
    (tmp_path / "a.db-journal").write_bytes(_journal_of_an_empty_file())
    assert damage(path, ENOUGH) is None
    assert path.stat().st_size == 0


def _journal_of_an_empty_file() -> bytes:
    """A hot journal that says: the file had no pages. Format: sqlite.org/fileformat.html, section 3."""
    magic = bytes.fromhex("d9d505f920a163d7")
    fields = [0, 1, 0, 512, 4096]  # no records, nonce, pages before, sector size, page size
    return (magic + b"".join(field.to_bytes(4, "big") for field in fields)).ljust(512, b"\0")


def test_a_directory_in_its_place_is_no_damage_to_repair(tmp_path: Path) -> None:
    (tmp_path / "a.db").mkdir()
    problem = damage(tmp_path / "a.db", ENOUGH)
    assert problem is not None
    assert "directory" in problem


def test_what_is_set_aside_keeps_its_content_and_can_be_opened(tmp_path: Path) -> None:
    path = database(tmp_path / "a.db")
    (tmp_path / "a.db-wal").write_bytes(b"")
    (tmp_path / "a.db-shm").write_bytes(b"shared")
    before = path.read_bytes()
    name = rename_damaged(path, NOW)
    assert name == "a.db.damaged-20231114T221320Z"
    assert sorted(p.name for p in tmp_path.iterdir()) == [name, f"{name}-wal"]
    assert (tmp_path / name).read_bytes() == before


def test_the_directory_is_synced_after_the_renames(tmp_path: Path) -> None:
    disk = TestedDisk()
    rename_damaged(database(tmp_path / "a.db"), NOW, disk=disk)
    operations = [operation for operation, _ in disk.operations]
    assert operations.index("sync") > operations.index("rename")
    assert disk.operations[operations.index("sync")] == ("sync", tmp_path.name)


def test_the_newest_are_kept_even_when_the_clock_goes_back(tmp_path: Path) -> None:
    names = []
    for now in (NOW, NOW, NOW + 5, NOW + 9, 0.0):
        path = database(tmp_path / "a.db", rows=1)
        (tmp_path / "a.db-wal").write_bytes(b"w")
        names.append(rename_damaged(path, now))
    assert len(set(names)) == 5
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {name + suffix for name in (names[2], names[3], names[4]) for suffix in ("", "-wal")}
    assert len(left) == 2 * KEPT


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    disk = TestedDisk(0, OSError(errno.EROFS, os.strerror(errno.EROFS)))
    with pytest.raises(StorageError, match=r"a\.db: setting what is damaged aside failed: .*writable"):
        rename_damaged(database(tmp_path / "a.db"), NOW, disk=disk)
    assert (tmp_path / "a.db").exists()
