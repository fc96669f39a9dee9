"""The service's control group in two parts: real groups of the kernel, and processes of their own in them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.host.limits import VARIABLE, divide, half_of_memory, join_trainer, lent

# What systemd does, then what the daemon does, then what its trainer does.
SERVICE = """
import os, subprocess, sys
from pathlib import Path
from edged.host.limits import divide, lent
mount, folder = Path(sys.argv[1]), Path(sys.argv[2])
(folder / "cgroup.procs").write_text("0")
assert lent(mount=mount) == folder, lent(mount=mount)
division = divide(folder, 256 << 20)
print(division.trainer.name, *division.controllers)
print(Path("/proc/self/cgroup").read_text().splitlines()[-1])
trainer = "from edged.host import limits; limits.join_trainer(); print(open('/proc/self/cgroup').read())"
done = subprocess.run([sys.executable, "-c", trainer], capture_output=True, text=True)
print(done.stdout.strip().splitlines()[-1])
"""


def hierarchy() -> Path | None:
    """Where the unified hierarchy of control groups is mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    return None


@pytest.fixture
def mount() -> Path:
    found = hierarchy()
    if found is None or not os.access(found / "cgroup.procs", os.W_OK):
        pytest.skip("no control groups of one's own can be made here")
    return found


@pytest.fixture
def group(mount: Path) -> Iterator[Path]:
    """A group as systemd makes one for a service with `Delegate=`."""
    folder = mount / f"edged-test-{os.getpid()}"
    folder.mkdir()
    os.setxattr(folder, "user.delegate", b"1")
    yield folder
    for part in (*folder.glob("*/"), folder):
        part.rmdir()


def test_daemon_and_trainer_are_parts_of_what_was_lent(mount: Path, group: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, str(mount), str(group)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    division, daemon, trainer = done.stdout.splitlines()
    offered = (group / "cgroup.controllers").read_text().split()
    assert division.split() == ["trainer", *(name for name in ("memory", "cpu") if name in offered)]
    assert daemon == f"0::/{group.name}/daemon"
    assert trainer == f"0::/{group.name}/trainer"


def test_bounds_are_the_kernels(mount: Path, group: Path) -> None:
    if "memory" not in (group / "cgroup.controllers").read_text().split():
        pytest.skip("the memory controller belongs to another hierarchy here")
    subprocess.run(
        [sys.executable, "-c", SERVICE, str(mount), str(group)], check=True, capture_output=True, timeout=30
    )
    assert (group / "trainer" / "memory.max").read_text().strip() == str(256 << 20)
    assert (group / "trainer" / "memory.oom.group").read_text().strip() == "1"


def test_a_group_that_was_not_lent_is_left_alone(mount: Path, group: Path, tmp_path: Path) -> None:
    os.removexattr(group, "user.delegate")
    own = tmp_path / "cgroup"
    own.write_text(f"4:memory:/\n0::/{group.name}\n")
    assert lent(own, mount) is None


def test_without_the_unified_hierarchy_nothing_is_lent(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/user\n1:cpu:/\n")
    assert lent(tmp_path / "cgroup", tmp_path) is None


def test_a_part_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    assert join_trainer() == "control group not joined: No such file or directory"


def test_without_a_part_there_is_nothing_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert join_trainer() == ""


def test_half_of_the_memory_is_less_than_all_of_it() -> None:
    (total,) = (int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()
                if line.startswith("MemTotal:"))  # fmt: skip
    assert abs(half_of_memory() - total * 1024 // 2) <= 4096


def test_what_is_refused_names_the_file(tmp_path: Path) -> None:
    """The kernel refuses the write, not the opening, and that error knows no name."""
    procs = tmp_path / "daemon" / "cgroup.procs"
    procs.parent.mkdir()
    procs.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as refused:
        divide(tmp_path, 1 << 20)
    assert refused.value.filename == str(procs)
