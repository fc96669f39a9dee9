"""Processors that exist only as files: an RK3588 has four small and four big cores, an Orin's are alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edged.host.limits import fitting, for_training, quota, small_ones, usable

RK3588 = dict.fromkeys(range(4), 530) | dict.fromkeys(range(4, 8), 1024)


def machine(root: Path, capacities: dict[int, int]) -> Path:
    for cpu, capacity in capacities.items():
        folder = root / "devices" / "system" / "cpu" / f"cpu{cpu}"
        folder.mkdir(parents=True)
        (folder / "cpu_capacity").write_text(f"{capacity}\n")
    return root


def test_training_keeps_to_the_small_cores(tmp_path: Path) -> None:
    sys = machine(tmp_path, RK3588)
    assert for_training(None, 1, sys, range(8)) == (0, 1, 2, 3)
    assert for_training(None, 5, sys, range(8)) is None, "not where there are too few for its threads"
    assert for_training("all", 1, sys, range(8)) is None
    assert for_training([6], 1, sys, range(8)) == [6]


def test_only_processors_that_may_be_used_count(tmp_path: Path) -> None:
    sys = machine(tmp_path, RK3588)
    assert for_training(None, 1, sys, {3, 4, 5}) == (3,)
    assert for_training(None, 1, sys, {4, 5}) is None


def test_processors_that_are_alike_or_tell_nothing(tmp_path: Path) -> None:
    assert small_ones(range(4), machine(tmp_path / "orin", dict.fromkeys(range(4), 1024))) == ()
    assert small_ones(range(4), tmp_path / "pc") == ()
    assert small_ones((), tmp_path) == ()


@pytest.mark.parametrize(
    ("text", "wanted"), [("max 100000", None), ("150000 100000", 1.5), ("nonsense", None)]
)
def test_the_quota_of_a_container(tmp_path: Path, text: str, wanted: float | None) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/system.slice/edged.service\n")
    folder = tmp_path / "fs" / "cgroup" / "system.slice" / "edged.service"
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text(text + "\n")
    assert quota(tmp_path, tmp_path) == wanted
    (folder.parent / "cpu.max").write_text("50000 100000\n")
    assert quota(tmp_path, tmp_path) == 0.5, "the narrowest on the way counts"


def test_no_more_threads_than_processors() -> None:
    assert usable() == os.sched_getaffinity(0)
    assert fitting(1) == 1
    assert fitting(10_000) <= len(usable())
