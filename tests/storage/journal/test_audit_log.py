"""The files of the audit log: each entry is there once, whenever the power goes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from edged.domain.audit_chain import AuditEntry, Link
from edged.errors import CorruptError, StorageError
from edged.storage.files.checksummed_json import read_sealed
from edged.storage.journal.audit_log import HEAD, AuditLog, read_audit
from edged.storage.models.registry import Registry
from tests.storage.disks import Fault, PowerCutError


def numbered(n: int) -> AuditEntry:
    """An entry that says a number."""
    return AuditEntry(float(n), "configuration", after=n)


def numbers(state: Path, *, running: bool = False) -> list[Any]:
    """What the entries say, in their order."""
    entries = [logged.entry for logged in read_audit(state, running=running)[0]]
    return [entry.after for entry in entries if entry.what == "configuration"]


def number_of(path: Path) -> int:
    """The first entry of a file."""
    return int(path.stem.partition("-")[2])


def test_entries_wait_in_the_journal_and_are_appended_once(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        assert read_audit(tmp_path, running=False)[0] == []
        for n in range(3):
            registry.record_audit(numbered(n))
        log = AuditLog(tmp_path)
        for _ in range(2):
            log.drain(registry)
            assert numbers(tmp_path) == [0, 1, 2]
        entries, last = read_audit(tmp_path, running=True)
        assert [entry.to_json()["seq"] for entry in entries] == [1, 2, 3]
        assert registry.audit_head() == Link(3, last.hash)
        assert not registry.audit_waits
        AuditLog(tmp_path).append(numbered(3))
        assert numbers(tmp_path) == [0, 1, 2, 3]


@pytest.mark.parametrize("existing", [0, 2])
@pytest.mark.parametrize("kind", ["power_cut", "ENOSPC", "EIO"])
def test_whichever_step_is_the_last_one_each_entry_is_there_once(
    tmp_path: Path, existing: int, kind: str
) -> None:
    at = -1
    while True:
        at += 1
        state = tmp_path / str(at)
        state.mkdir()
        with Registry.open(state) as registry:
            for n in range(existing):
                AuditLog(state).append(numbered(n))
            for n in range(existing, 4):
                registry.record_audit(numbered(n))
            disk = Fault(at, kind).disk()
            with suppress(PowerCutError, StorageError):
                AuditLog(state, disk=disk).drain(registry)
            ended = len(disk.operations) <= at
        with Registry.open(state) as registry:
            registry.record_audit(numbered(4))
            AuditLog(state).drain(registry)
            assert numbers(state) == [0, 1, 2, 3, 4]
        if ended:
            assert at > 4
            return


def test_rows_whose_deletion_was_lost_twice_are_not_appended_again(tmp_path: Path) -> None:
    with Registry.open(tmp_path) as registry:
        for n in range(3):
            registry.record_audit(numbered(n))
            rows = registry.waiting_audit()
            AuditLog(tmp_path).drain(registry)
            for name, entry in rows.items():  # as if the power had gone before they were deleted
                registry.set_value(name, entry.to_json())
            registry.audit_waits = True
        AuditLog(tmp_path).drain(registry)
        assert registry.waiting_audit() == {}
    assert numbers(tmp_path) == [0, 1, 2]


def test_it_stays_small_and_the_chain_goes_on_over_files(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, max_bytes=2000)
    for n in range(100):
        log.append(numbered(n))
        assert numbers(tmp_path)[-1] == n
    files = sorted(tmp_path.glob("audit-*.jsonl"))
    assert len(files) == 2
    assert sum(file.stat().st_size for file in files) < 5000
    kept = numbers(tmp_path)
    assert kept == list(range(kept[0], 100))
    assert kept[0] > 50


def test_what_a_power_cut_left_behind_the_head_is_no_entry(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    log.append(numbered(0))
    path = tmp_path / "audit-1.jsonl"
    whole = path.read_bytes()
    for torn in (b'{"seq":2,"prev', bytes(700), b'{"seq":2}\n'):
        path.write_bytes(whole + torn)
        assert numbers(tmp_path, running=True) == [0]
        with pytest.raises(CorruptError, match=r"audit-1\.jsonl, line 2"):
            numbers(tmp_path)
    log.append(numbered(1))
    assert numbers(tmp_path) == [0, 1]


@pytest.mark.parametrize("way", ["edit", "cut", "delete", "head", "older head"])
def test_tampering_is_noticed_then_and_after_further_entries(tmp_path: Path, way: str) -> None:
    log = AuditLog(tmp_path)
    for n in range(3):
        log.append(numbered(n))
    old = (tmp_path / HEAD).read_bytes()
    for n in range(3, 6):
        log.append(numbered(n))
    path = tmp_path / "audit-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if way == "edit":
        path.write_bytes(b"".join(lines).replace(b'"after":4', b'"after":9'))
    elif way == "cut":
        path.write_bytes(b"".join(lines[:4]))
    elif way == "delete":
        path.unlink()
    elif way == "head":
        (tmp_path / HEAD).unlink()
    else:
        (tmp_path / HEAD).write_bytes(old)
    with pytest.raises(CorruptError):
        numbers(tmp_path)
    if way in ("head", "older head"):
        return  # who can write both can make a chain of their own: only a published head tells
    before = path.read_bytes() if path.exists() else b""
    log.append(numbered(6))
    with pytest.raises(CorruptError, match=r"audit-1\.jsonl, line \d"):
        numbers(tmp_path)
    assert path.read_bytes().startswith(before), "the evidence stays"


def test_a_lost_head_begins_again_behind_the_last_entry(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, max_bytes=2000)
    for n in range(40):
        log.append(numbered(n))
    for damaged in (b"", b"{}", None):
        (tmp_path / HEAD).unlink()
        if damaged is not None:
            (tmp_path / HEAD).write_bytes(damaged)
        last = json.loads(max(tmp_path.glob("audit-*"), key=number_of).read_bytes().splitlines()[-1])["after"]
        log.append(numbered(last + 1))
        found = numbers(tmp_path)
        assert found == list(range(found[0], last + 2))
    assert read_sealed(tmp_path / HEAD)["last"]["seq"] == 46
    assert any(logged.entry.what == "head_lost" for logged in read_audit(tmp_path, running=False)[0])
