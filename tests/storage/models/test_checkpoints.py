from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as npst

from edged.errors import CorruptError, StorageError
from edged.storage.files.atomic import Disk
from edged.storage.models.checkpoints import Checkpoints, pack_arrays, unpack_arrays
from tests.storage.disks import Fault, PowerCutError, TestedDisk, faults

ROOT = Path(__file__).parents[3]
STATE = {"consumed": 41, "rng": {"state": 2**127 + 1}, "rate": 0.1}


def arrays(number: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"ids": np.arange(number, dtype=np.int64), "mean/x": np.full((2, 3), number, np.float32)}


def publish(checkpoints: Checkpoints, number: int = 1) -> int:
    staging = checkpoints.stage()
    (staging / "checkpoint").write_bytes(bytes([number]) * 50)
    return checkpoints.publish(staging, {**STATE, "number": number}, arrays(number))


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_there_is_none_at_first(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", 3)
    assert checkpoints.latest() is None
    assert checkpoints.numbers() == []


def test_a_generation_comes_back_as_it_was(tmp_path: Path) -> None:
    assert publish(Checkpoints(tmp_path, 3), 7) == 1
    latest = Checkpoints(tmp_path, 3).latest()
    assert latest is not None
    assert (latest.number, latest.path) == (1, tmp_path / "1")
    assert latest.state == {**STATE, "number": 7}
    assert (latest.path / "checkpoint").read_bytes() == b"\x07" * 50
    for name, array in arrays(7).items():
        assert latest.arrays[name].dtype == array.dtype
        assert latest.arrays[name].tolist() == array.tolist()


def test_the_same_values_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        publish(Checkpoints(tmp_path / name, 3), 7)
    for file in (tmp_path / "a" / "1").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / "1" / file.name).read_bytes()


def test_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    assert [publish(checkpoints, number) for number in range(1, 6)] == [1, 2, 3, 4, 5]
    assert checkpoints.numbers() == [4, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


class StepRecorder(Disk):
    """Lists what happens to names in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.steps: list[str] = []

    def sync(self, path: Path) -> None:
        super().sync(path)
        self.steps += ["sync"] if path == self.directory else []

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.steps.append(f"publish {target.name}" if target.name.isdigit() else f"remove {source.name}")


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_new_one_is_durable_before_the_oldest_goes(tmp_path: Path, keep: int) -> None:
    checkpoints = Checkpoints(tmp_path, keep, disk=(disk := StepRecorder(tmp_path)))
    for number in range(keep):
        publish(checkpoints, number)
    disk.steps.clear()
    publish(checkpoints, keep)
    assert disk.steps == [f"publish {keep + 1}", "sync", "remove 1", "sync"]
    assert len(checkpoints.numbers()) == keep


def test_every_changed_bit_is_noticed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 3)
    publish(checkpoints, 2)
    files = sorted((tmp_path / "1").iterdir())
    assert [path.name for path in files] == ["arrays.npz", "checkpoint", "manifest.json", "state.json"]
    for path in files:
        for byte in range(path.stat().st_size):
            flip(path, 8 * byte + byte % 8)
            assert checkpoints.latest() is None
            assert checkpoints.damaged == [1]
            flip(path, 8 * byte + byte % 8)
    assert checkpoints.latest() is not None
    assert checkpoints.damaged == []


def test_damaged_ones_are_passed_over_and_listed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 5)
    for number in range(1, 5):
        publish(checkpoints, number)
    flip(tmp_path / "4" / "checkpoint", 17)
    (tmp_path / "3" / "arrays.npz").unlink()
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.number == 2
    assert checkpoints.damaged == [4, 3]
    with pytest.raises(CorruptError, match="4/checkpoint"):
        checkpoints.get(4)
    assert checkpoints.get(1).state["number"] == 1


def test_one_that_cannot_be_read_is_passed_over_too(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 5)
    for number in (1, 2):
        publish(checkpoints, number)
    # Reading the memory of a process at address 0 fails with EIO, as a bad sector does.
    (tmp_path / "2" / "checkpoint").unlink()
    (tmp_path / "2" / "checkpoint").symlink_to("/proc/self/mem")
    latest = checkpoints.latest()
    assert latest is not None
    assert latest.number == 1
    assert checkpoints.damaged == [2]
    assert publish(Checkpoints(tmp_path, 1), 3) == 3


def test_a_damaged_one_does_not_count_among_those_kept(tmp_path: Path) -> None:
    for number in range(1, 4):
        publish(Checkpoints(tmp_path, 3), number)
    flip(tmp_path / "2" / "checkpoint", 17)
    assert publish(Checkpoints(tmp_path, 3), 4) == 4
    assert Checkpoints(tmp_path, 3).numbers() == [1, 3, 4]


def test_a_number_is_not_given_again_after_damage(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    publish(checkpoints, 1)
    publish(checkpoints, 2)
    flip(tmp_path / "2" / "state.json", 1)
    assert publish(Checkpoints(tmp_path, 2), 3) == 3


def test_objects_are_not_pickled(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    with pytest.raises(StorageError, match="'bad' holds Python objects"):
        checkpoints.publish(checkpoints.stage(), {}, {"bad": np.array([{}])})
    assert checkpoints.latest() is None


def test_a_pickle_in_the_archive_is_refused() -> None:
    evil = io.BytesIO()
    np.savez(evil, a=np.array([{}], object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        unpack_arrays(evil.getvalue())


def test_what_was_staged_and_never_published_is_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, 2)
    first = checkpoints.stage()
    (first / "half").write_bytes(b"x")
    second = checkpoints.stage()
    assert not first.exists()
    assert second.exists()
    assert checkpoints.numbers() == []


@settings(deadline=None, max_examples=30)
@given(npst.arrays(npst.scalar_dtypes(), npst.array_shapes(min_dims=0, min_side=0, max_side=4)))
def test_any_plain_array_comes_back(array: np.ndarray[Any, Any]) -> None:
    back = unpack_arrays(pack_arrays({"a": array}))["a"]
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def operations(directory: Path) -> int:
    """How many operations the third publish takes, with one to be pruned."""
    disk = TestedDisk()
    checkpoints = Checkpoints(directory, 2, disk=disk)
    for number in (1, 2):
        publish(checkpoints, number)
    disk.operations.clear()
    publish(checkpoints, 3)
    return len(disk.operations)


def test_whatever_fails_the_newest_is_whole(tmp_path: Path) -> None:
    count = operations(tmp_path / "counted")
    assert count > 12
    for fault in faults(count):
        check_fault(tmp_path / str(fault), fault)


def check_fault(directory: Path, fault: Fault) -> None:
    for number in (1, 2):
        publish(Checkpoints(directory, 2), number)
    with pytest.raises((StorageError, PowerCutError)):
        publish(Checkpoints(directory, 2, disk=fault.disk()), 3)
    again = Checkpoints(directory, 2)
    latest = again.latest()
    assert again.damaged == []
    assert latest is not None
    assert latest.number == latest.state["number"]
    assert latest.number in (2, 3)
    assert publish(again, 9) == latest.number + 1
    assert len(again.numbers()) == 2
    again.stage()
    assert len(list(directory.iterdir())) == 3


WRITER = """
import sys
from pathlib import Path
from edged.storage.models.checkpoints import Checkpoints
from tests.storage.models.test_checkpoints import publish

checkpoints = Checkpoints(Path(sys.argv[1]), 2)
while True:
    number = max(checkpoints.numbers(), default=0) + 1
    print(publish(checkpoints, number % 256), flush=True)
"""


def test_what_was_reported_survives_kill_9(tmp_path: Path) -> None:
    reported = 0
    for rounds in (3, 11, 1, 6, 14):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            assert process.stdout is not None
            for _ in range(rounds):
                reported = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            reported = int([str(reported), *process.stdout.read().split("\n")[:-1]][-1])
        checkpoints = Checkpoints(tmp_path, 2)
        latest = checkpoints.latest()
        assert latest is not None
        assert checkpoints.damaged == []
        assert latest.number in (reported, reported + 1)
        assert latest.state["number"] == latest.number % 256
