"""Records that are there after a restart, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edged.errors import CorruptError, StorageError
from edged.storage.files.append_log import AppendLog
from edged.storage.files.atomic import Disk

RECORDS = [({"n": n}, bytes([n]) * (100 * n)) for n in range(5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "rounds" / "1"
    spool = AppendLog(made)
    for head, body in RECORDS:
        spool.append(head, body)
    spool.sync()
    spool.close()
    return made


def held(path: Path) -> list[tuple[Mapping[str, Any], bytes]]:
    spool = AppendLog(path)
    found = [(record.head, spool.read(record)) for record in spool.records]
    spool.close()
    return found


def test_everything_is_there_again(path: Path) -> None:
    assert held(path) == RECORDS


def test_more_is_added_behind_it(path: Path) -> None:
    spool = AppendLog(path)
    record = spool.append({"n": 9}, b"more")
    spool.sync()
    assert spool.read(record) == b"more"
    spool.close()
    assert held(path) == [*RECORDS, ({"n": 9}, b"more")]


def test_wherever_it_is_torn_whole_records_stay(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    spool = AppendLog(path)
    ends = [record.at + record.size for record in spool.records]
    spool.close()
    torn = tmp_path / "torn"
    for size in range(0, len(data) + 1, 3):
        torn.write_bytes(data[:size])
        whole = sum(end <= size for end in ends)
        assert held(torn) == RECORDS[:whole], size
        assert torn.stat().st_size == ([0, *ends])[whole]


def test_a_changed_bit_ends_it(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-250] ^= 1
    path.write_bytes(data)
    assert held(path) == RECORDS[:4]


def test_a_record_that_is_not_durable_cannot_be_read(path: Path) -> None:
    spool = AppendLog(path)
    record = spool.append({}, b"waiting")
    with pytest.raises(CorruptError):
        spool.read(record)
    spool.close()


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    class Refusing(Disk):
        def sync(self, path: Path) -> None:
            if path.name == "1":
                raise OSError(28, "No space left on device")

    spool = AppendLog(tmp_path / "1", disk=Refusing())
    spool.append({}, b"x")
    with pytest.raises(StorageError, match="free some disk space"):
        spool.sync()
    spool.close()
