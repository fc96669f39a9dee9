from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import CorruptError, StorageError, TrainingError
from edged.storage.files.atomic import (
    MANIFEST,
    STAGING,
    DirectoryLock,
    disk_errors_of_others,
    publish_directory,
    publish_file,
    read_manifest,
    remove,
    remove_files,
    staging_path,
    sweep,
    verify_directory,
)
from edged.storage.files.checksummed_json import seal, unseal
from tests.storage.disks import Fault, PowerCutError, TestedDisk, faults

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def staged(parent: Path) -> Path:
    staging = staging_path(parent, "new")
    (staging / "inner").mkdir(parents=True)
    (staging / "weights").write_bytes(bytes(range(200)))
    (staging / "inner" / "moments").write_bytes(b"m" * 100)
    return staging


def test_a_file_is_replaced_and_nothing_is_left_over(tmp_path: Path) -> None:
    path = tmp_path / "pointer"
    publish_file(path, b"one")
    publish_file(path, b"two")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["pointer"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_an_error_of_others_is_the_disks_where_it_refuses_us_too(tmp_path: Path, number: int) -> None:
    refusing = TestedDisk(0, OSError(number, os.strerror(number)))
    with (
        pytest.raises(StorageError, match=os.strerror(number)),
        disk_errors_of_others(tmp_path, disk=refusing),
    ):
        raise TrainingError("cannot save")
    with pytest.raises(TrainingError, match="cannot save"), disk_errors_of_others(tmp_path):
        raise TrainingError("cannot save")
    with pytest.raises(StorageError, match=os.strerror(number)), disk_errors_of_others(tmp_path):
        raise OSError(number, os.strerror(number))
    assert list(tmp_path.iterdir()) == [], "the probe has gone"


def test_a_file_is_durable_before_its_name_and_its_name_before_the_return(tmp_path: Path) -> None:
    disk = TestedDisk()
    publish_file(tmp_path / "pointer", b"one", disk=disk)
    assert [operation for operation, _ in disk.operations] == ["write", "sync", "rename", "sync"]
    assert disk.operations[2:] == [("rename", "pointer"), ("sync", tmp_path.name)]


@pytest.mark.parametrize("fault", faults(4), ids=str)
def test_a_file_is_the_old_or_the_new_one_whatever_fails(tmp_path: Path, fault: Fault) -> None:
    path = tmp_path / "pointer"
    publish_file(path, b"old")
    with pytest.raises((StorageError, PowerCutError)):
        publish_file(path, b"new", disk=fault.disk())
    assert path.read_bytes() == (b"old" if fault.at <= 2 else b"new")
    sweep(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pointer"]


def test_a_full_disk_is_told_with_the_path_and_a_remedy(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(StorageError, match=r"pointer: .*No space left.* \(free some disk space\)"):
        publish_file(tmp_path / "pointer", b"one", disk=TestedDisk(0, full))


def test_a_directory_is_published_with_its_manifest(tmp_path: Path) -> None:
    manifest = publish_directory(staged(tmp_path), tmp_path / "7", extra={"run": 3})
    assert manifest == verify_directory(tmp_path / "7") == read_manifest(tmp_path / "7")
    assert manifest.extra["run"] == 3
    assert {name: entry.bytes for name, entry in manifest.files.items()} == {
        "inner/moments": 100,
        "weights": 200,
    }
    assert len(json.loads((tmp_path / "7" / MANIFEST).read_text())["files"]["weights"]["sha256"]) == 64


def test_a_directory_is_durable_before_its_name(tmp_path: Path) -> None:
    disk = TestedDisk()
    publish_directory(staged(tmp_path), tmp_path / "7", disk=disk)
    names = [name for operation, name in disk.operations if operation == "sync"]
    assert set(names[:4]) == {"weights", "moments", MANIFEST, "inner"}
    assert disk.operations[-2:] == [("rename", "7"), ("sync", tmp_path.name)]
    assert disk.operations[-3][1].startswith(STAGING)


def test_both_parents_are_synced_when_a_directory_moves(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "candidates").mkdir()
    disk = TestedDisk()
    publish_directory(staged(tmp_path / "candidates"), tmp_path / "models" / "7", disk=disk)
    assert {name for _, name in disk.operations[-2:]} == {"models", "candidates"}


@pytest.mark.parametrize("fault", faults(8), ids=str)
def test_a_directory_is_whole_or_not_there_whatever_fails(tmp_path: Path, fault: Fault) -> None:
    with pytest.raises((StorageError, PowerCutError)):
        publish_directory(staged(tmp_path), tmp_path / "7", disk=fault.disk())
    assert (tmp_path / "7").exists() == (fault.at == 7)
    if fault.at == 7:
        verify_directory(tmp_path / "7")
    sweep(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == (["7"] if fault.at == 7 else [])


def test_what_was_published_is_never_overwritten(tmp_path: Path) -> None:
    publish_directory(staged(tmp_path), tmp_path / "7")
    with pytest.raises(StorageError, match="never overwritten"):
        publish_directory(staged(tmp_path), tmp_path / "7")


def test_every_changed_bit_in_a_directory_is_noticed(tmp_path: Path) -> None:
    publish_directory(staged(tmp_path), tmp_path / "7", extra={"run": 3, "note": "ä"})
    for path in (p for p in (tmp_path / "7").rglob("*") if p.is_file()):
        data = path.read_bytes()
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            path.write_bytes(changed)
            with pytest.raises(CorruptError):
                verify_directory(tmp_path / "7")
        path.write_bytes(data)
    verify_directory(tmp_path / "7")


def test_damage_is_told_with_the_file(tmp_path: Path) -> None:
    publish_directory(staged(tmp_path), tmp_path / "7")
    (tmp_path / "7" / "weights").write_bytes(b"")
    with pytest.raises(CorruptError, match=r"7/weights: .*damaged"):
        verify_directory(tmp_path / "7")
    (tmp_path / "7" / "weights").unlink()
    with pytest.raises(CorruptError, match="7/weights: the file is missing"):
        verify_directory(tmp_path / "7")
    (tmp_path / "7" / MANIFEST).unlink()
    with pytest.raises(CorruptError, match=r"7/manifest.json: the file is missing"):
        verify_directory(tmp_path / "7")


def test_a_manifest_cannot_point_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / MANIFEST).write_bytes(seal({"files": {"../secret": {"sha256": "", "bytes": 0}}}))
    with pytest.raises(CorruptError, match="outside"):
        verify_directory(tmp_path / "7")


def test_the_sweep_takes_only_what_was_not_finished(tmp_path: Path) -> None:
    staged(tmp_path)
    publish_directory(staged(tmp_path), tmp_path / "7")
    (tmp_path / f"{STAGING}pointer-1").write_bytes(b"")
    assert len(sweep(tmp_path)) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["7"]
    assert sweep(tmp_path / "nowhere") == []


@settings(deadline=None)
@given(st.dictionaries(st.text().filter(lambda name: name != "seal"), JSON, max_size=5))
def test_sealed_values_come_back(values: dict[str, object]) -> None:
    assert unseal(seal(values), "here") == values


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_anything_else_is_no_sealed_file(data: bytes) -> None:
    with pytest.raises(CorruptError, match="here: the file is damaged"):
        unseal(data, "here")


def test_sealed_numbers_as_keys_keep_their_seal() -> None:
    assert unseal(seal({"by_class": {10: 1, 9: (2,)}}), "here") == {"by_class": {"10": 1, "9": [2]}}


def test_what_is_made_under_the_lock_is_for_its_owner_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    before = os.umask(0o022)
    try:
        (state / "models").mkdir(parents=True)
        (state / "models" / "champion").write_text("made before")
        (state / "link").symlink_to(tmp_path / "others")
        (tmp_path / "others").write_text("not of the state")
        with DirectoryLock(state):
            (state / "new").mkdir()
            (state / "new" / "file").write_text("x")
        made = [state, *(path for path in state.rglob("*") if not path.is_symlink())]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
        assert modes == {
            **dict.fromkeys(("state", "new"), 0o700), "models": 0o755,
            **dict.fromkeys(("file", "edged.lock"), 0o600), "champion": 0o644,
        }  # fmt: skip
        assert (tmp_path / "others").stat().st_mode & 0o077, "links lead nowhere"
        assert os.umask(0o022) == 0o022, "as before"
    finally:
        os.umask(before)


def test_a_second_lock_names_the_holder(tmp_path: Path) -> None:
    assert DirectoryLock.holder(tmp_path) is None
    with DirectoryLock(tmp_path):
        assert DirectoryLock.holder(tmp_path) == os.getpid()
        with pytest.raises(
            StorageError, match=rf"another edged is using this state directory \(pid {os.getpid()}\)"
        ):
            DirectoryLock(tmp_path).acquire()
    assert DirectoryLock.holder(tmp_path) is None
    with DirectoryLock(tmp_path):
        pass


HOLD = """
import sys
from pathlib import Path
from edged.storage.files.atomic import DirectoryLock
with DirectoryLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert DirectoryLock.holder(tmp_path) == holder.pid
        with pytest.raises(StorageError, match=str(holder.pid)):
            DirectoryLock(tmp_path).acquire()
        holder.kill()
        holder.wait()
    assert DirectoryLock.holder(tmp_path) is None
    with DirectoryLock(tmp_path):
        pass


def test_a_name_is_durably_gone_before_any_file_behind_it(tmp_path: Path) -> None:
    """Otherwise ext4 with data=writeback can bring back a published directory that lacks files."""
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "weights").write_bytes(b"w")
    disk = TestedDisk()
    remove(tmp_path / "5", disk=disk)
    done = [operation for operation, _ in disk.operations]
    assert done == ["rename", "sync", "remove", "remove"]
    assert disk.operations[1] == ("sync", tmp_path.name)
    assert list(tmp_path.iterdir()) == []


def test_removed_files_are_counted_and_links_lead_nowhere(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    for path in (folder / "a", folder / "inner" / "b", outside):
        path.write_bytes(b"x")
    (folder / "link").symlink_to(outside)
    assert remove_files([folder, tmp_path / "missing"]) == 2
    assert not folder.exists()
    assert outside.read_bytes() == b"x"
