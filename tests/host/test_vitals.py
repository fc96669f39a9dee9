"""Vital signs of this machine, and of machines that exist only as files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from edged.clock import VirtualClock
from edged.host.vitals import Vitals, VitalsReader

NOTHING = Vitals()
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A small machine: 3 pages resident, load 0.52, up for 1000.5 s."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "statm").write_text("900 3 2 1 0 1 0\n")
    (tmp_path / "proc" / "loadavg").write_text("0.52 0.40 0.30 1/100 4242\n")
    (tmp_path / "proc" / "uptime").write_text("1000.50 1900.00\n")
    use_cpu(tmp_path, user=0, system=0)
    return tmp_path


def use_cpu(machine: Path, *, user: int, system: int, name: str = "python3") -> None:
    fields = f"S 1 7 7 0 -1 4194560 100 0 0 0 {user} {system} 0 0 20 0 1 0 900 0 0"
    (machine / "proc" / "self" / "stat").write_text(f"7 ({name}) {fields}\n")


def heat(machine: Path, zone: int, text: str) -> None:
    folder = machine / "sys" / "class" / "thermal" / f"thermal_zone{zone}"
    folder.mkdir(parents=True)
    (folder / "temp").write_text(text)


def reader(machine: Path, clock: VirtualClock | None = None) -> VitalsReader:
    return VitalsReader(
        machine, proc=machine / "proc", sys=machine / "sys", root=machine, clock=clock or VirtualClock()
    )


def test_this_machine() -> None:
    vitals = VitalsReader(Path()).read()
    assert vitals.rss_bytes is not None
    assert 5e6 < vitals.rss_bytes < 2e9
    assert vitals.disk_free_bytes is not None
    assert vitals.load1 is not None
    assert vitals.uptime_s is not None
    assert vitals.uptime_s > 0


def test_a_busy_process_uses_about_one_core() -> None:
    here = VitalsReader(Path())
    end = time.thread_time() + 0.3
    while time.thread_time() < end:
        pass
    busy = here.read().cpu_percent
    assert busy is not None
    assert busy > 10  # 100 on a free machine; less where cores are shared


def test_a_machine_made_of_files(machine: Path) -> None:
    vitals = reader(machine).read()
    assert vitals.rss_bytes == 3 * os.sysconf("SC_PAGE_SIZE")
    assert vitals.load1 == 0.52
    assert vitals.uptime_s == 1000.5
    assert vitals.to_json() == {
        "cpu_percent": None,
        "rss_bytes": vitals.rss_bytes,
        "temperature_c": None,
        "load1": 0.52,
        "disk_free_bytes": vitals.disk_free_bytes,
        "uptime_s": 1000.5,
        "on_battery": None,
        "battery_percent": None,
        "throttled": None,
        "under_voltage": None,
        "power_mode": None,
        "clock_synchronised": None,
        "flash_bytes_written": None,
    }


def test_cpu_is_counted_from_the_reading_before(machine: Path) -> None:
    clock = VirtualClock()
    vitals = reader(machine, clock)
    use_cpu(machine, user=2 * TICKS, system=TICKS)
    clock.advance_to(4.0)
    assert vitals.read().cpu_percent == pytest.approx(75.0)
    use_cpu(machine, user=2 * TICKS, system=2 * TICKS)
    clock.advance_to(14.0)
    assert vitals.read().cpu_percent == pytest.approx(10.0)


def test_two_readings_at_once_have_no_share_of_cpu(machine: Path) -> None:
    assert reader(machine).read().cpu_percent is None


def test_a_process_name_with_spaces_and_parentheses(machine: Path) -> None:
    clock = VirtualClock()
    vitals = reader(machine, clock)
    use_cpu(machine, user=TICKS, system=0, name="edged) 1 2 (x")
    clock.advance_to(2.0)
    assert vitals.read().cpu_percent == pytest.approx(50.0)


def supply(machine: Path, name: str, kind: str, **files: str) -> None:
    folder = machine / "sys" / "class" / "power_supply" / name
    folder.mkdir(parents=True)
    for file, text in {"type": kind, **files}.items():
        (folder / file).write_text(text + "\n")


@pytest.mark.parametrize(
    ("mains", "status", "on_battery"),
    [("1", "Charging", False), ("0", "Discharging", True), ("0", "Full", None), (None, "Discharging", True)],
)
def test_what_feeds_the_machine(
    machine: Path, mains: str | None, status: str, on_battery: bool | None
) -> None:
    supply(machine, "BAT0", "Battery", status=status, capacity="41")
    if mains is not None:
        supply(machine, "AC", "Mains", online=mains)
    vitals = reader(machine).read()
    assert (vitals.on_battery, vitals.battery_percent) == (on_battery, 41.0)


def test_the_hottest_zone_counts(machine: Path) -> None:
    heat(machine, 0, "41000\n")
    heat(machine, 1, "67500\n")
    assert reader(machine).read().temperature_c == 67.5


@pytest.mark.parametrize("text", ["-274000", "2147483647", "", "n/a", "\xff\xfe"])
def test_an_implausible_zone_is_left_out(machine: Path, text: str) -> None:
    heat(machine, 0, text)
    assert reader(machine).read().temperature_c is None
    heat(machine, 1, "40000")
    assert reader(machine).read().temperature_c == 40.0


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert VitalsReader(nowhere, proc=nowhere, sys=nowhere, root=nowhere).read() == NOTHING


@pytest.mark.parametrize("text", ["", "garbage", "(python3", "(python3) S 1", "\0\0"])
def test_a_machine_that_tells_nonsense(machine: Path, text: str) -> None:
    for name in ("self/stat", "self/statm", "loadavg", "uptime"):
        (machine / "proc" / name).write_text(text)
    vitals = reader(machine).read()
    assert (vitals.cpu_percent, vitals.rss_bytes, vitals.load1, vitals.uptime_s) == (None, None, None, None)
    assert vitals.disk_free_bytes is not None


def test_those_that_share_a_reader_share_its_readings(machine: Path) -> None:
    clock = VirtualClock()
    shared = VitalsReader(
        machine, proc=machine / "proc", sys=machine / "sys", root=machine, clock=clock, fresh=9.0
    )
    before = shared.read()
    (machine / "proc" / "loadavg").write_text("7.5 0.0 0.0 1/1 1")
    clock.advance_to(8.9)
    assert shared.read() == before
    clock.advance_to(9.0)
    assert shared.read().load1 == 7.5
