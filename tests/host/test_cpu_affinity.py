"""Processors that exist only as files: an RK3588 has four small and four big cores, an Orin's are alike."""

from __future__ import annotations

from pathlib import Path

from edged.host.limits import for_training, small_ones

RK3588 = dict.fromkeys(range(4), 530) | dict.fromkeys(range(4, 8), 1024)


def machine(root: Path, capacities: dict[int, int]) -> Path:
    for cpu, capacity in capacities.items():
        folder = root / "devices" / "system" / "cpu" / f"cpu{cpu}"
        folder.mkdir(parents=True)
        (folder / "cpu_capacity").write_text(f"{capacity}\n")
    return root


def test_training_keeps_to_the_small_cores(tmp_path: Path) -> None:
    sys = machine(tmp_path, RK3588)
    assert for_training(sys, range(8)) == (0, 1, 2, 3)


def test_only_processors_that_may_be_used_count(tmp_path: Path) -> None:
    sys = machine(tmp_path, RK3588)
    assert for_training(sys, {3, 4, 5}) == (3,)
    assert for_training(sys, {4, 5}) is None


def test_processors_that_are_alike_or_tell_nothing(tmp_path: Path) -> None:
    assert small_ones(range(4), machine(tmp_path / "orin", dict.fromkeys(range(4), 1024))) == ()
    assert small_ones(range(4), tmp_path / "pc") == ()
    assert small_ones((), tmp_path) == ()
