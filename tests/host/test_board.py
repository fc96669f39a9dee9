"""Boards that exist only as files, laid out as theirs are.

Raspberry Pi: the firmware's driver writes its flags as bare hexadecimal digits (raspberrypi/linux,
drivers/firmware/raspberrypi.c); `rpi_volt` is drivers/hwmon/raspberrypi-hwmon.c. Jetson Orin: JetPack 6,
`soctherm_oc` as of NVIDIA's tegra234 driver, zones and nvpmodel files as its developer guide shows them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from edged.clock import VirtualClock
from edged.host.board import Board, BoardReader
from edged.host.vitals import VitalsReader

FIRMWARE = "sys/devices/platform/soc/soc:firmware/get_throttled"
OVER = "sys/class/hwmon/hwmon3"


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def reader(root: Path) -> BoardReader:
    return BoardReader(sys=root / "sys", root=root)


PI = {
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
    "sys/class/thermal/thermal_zone0/temp": "48312",
    "sys/class/hwmon/hwmon0/name": "cpu_thermal",
    "sys/class/hwmon/hwmon1/name": "rpi_volt",
    "sys/class/hwmon/hwmon1/in0_lcrit_alarm": "0",
    FIRMWARE: "0",
}
ORIN = {
    f"{OVER}/name": "soctherm_oc",
    f"{OVER}/oc1_event_cnt": "0",
    f"{OVER}/oc2_event_cnt": "15",
    f"{OVER}/oc3_event_cnt": "37",
    f"{OVER}/oc1_throt_en": "1",
    "var/lib/nvpmodel/status": "pmode:0002",
    "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\nCPU_ONLINE CORE_0 1\n< POWER_MODEL ID=2 NAME=15W >",
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal",
    "sys/class/thermal/thermal_zone0/temp": "52000",
    "sys/class/thermal/thermal_zone8/type": "tj-thermal",
    "sys/class/thermal/thermal_zone8/temp": "53500",
    "sys/class/thermal/cooling_device0/type": "cpufreq-cpu0",
    "sys/class/thermal/cooling_device0/cur_state": "0",
    "sys/class/thermal/cooling_device9/type": "pwm-fan",
    "sys/class/thermal/cooling_device9/cur_state": "3",
}


@pytest.mark.parametrize(
    ("flags", "throttled", "low", "reasons"),
    [
        ("0", False, False, ()),
        ("50000", False, False, ()),  # it has happened, and is over
        ("50005", True, True, ("under-voltage", "throttled")),
        ("2", True, False, ("frequency capped",)),
        ("e0008", False, False, ("soft temperature limit",)),
        ("0x4", True, False, ("throttled",)),
    ],
)
def test_a_raspberry_pi(
    tmp_path: Path, flags: str, throttled: bool, low: bool, reasons: tuple[str, ...]
) -> None:
    board = reader(lay(tmp_path, {**PI, FIRMWARE: flags})).read()
    assert (board.throttled, board.under_voltage, board.reasons) == (throttled, low, reasons)
    assert (board.troubled, board.power_mode) == (throttled or low, None)


@pytest.mark.parametrize(("alarm", "low"), [("0", False), ("1", True), ("", None)])
def test_a_raspberry_pi_whose_kernel_shows_no_flags(tmp_path: Path, alarm: str, low: bool | None) -> None:
    files = {name: text for name, text in PI.items() if name != FIRMWARE}
    board = reader(lay(tmp_path, {**files, "sys/class/hwmon/hwmon1/in0_lcrit_alarm": alarm})).read()
    assert (board.throttled, board.under_voltage) == (None, low)


def test_a_jetson_that_draws_too_much(tmp_path: Path) -> None:
    board = reader(lay(tmp_path, ORIN))
    assert board.read() == Board(False, False, (), "15W"), "what was counted before does not count"
    lay(tmp_path, {f"{OVER}/oc3_event_cnt": "45"})
    assert board.read() == Board(True, False, ("over-current",), "15W")
    assert not board.read().troubled, "it counts no further"
    lay(tmp_path, {f"{OVER}/oc1_event_cnt": "1"})
    assert board.read().reasons == ("under-voltage",)
    lay(tmp_path, {"sys/class/thermal/cooling_device0/cur_state": "2"})
    assert board.read().reasons == ("processor cooled",)


def test_a_power_mode_without_a_name(tmp_path: Path) -> None:
    lay(tmp_path, {**ORIN, "etc/nvpmodel.conf": "", "var/lib/nvpmodel/status": "pmode:0007"})
    assert reader(tmp_path).read().power_mode == "7"


def test_a_board_that_tells_nothing(tmp_path: Path) -> None:
    assert reader(tmp_path).read() == Board()
    assert reader(lay(tmp_path, {FIRMWARE: "n/a", "var/lib/nvpmodel/status": "?"})).read() == Board()


def test_the_zone_of_a_jetson_nano_that_is_none(tmp_path: Path) -> None:
    """Its PMIC-Die always says 100 °C, which would hold training back for ever."""
    zones = {"AO-therm": "41500", "CPU-therm": "34000", "GPU-therm": "31000", "PMIC-Die": "100000"}
    for number, (kind, text) in enumerate(zones.items()):
        folder = f"sys/class/thermal/thermal_zone{number}"
        lay(tmp_path, {f"{folder}/type": kind, f"{folder}/temp": text})
    vitals = VitalsReader(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys", root=tmp_path)
    assert vitals.read().temperature_c == 41.5


def test_all_of_it_is_in_the_vital_signs(tmp_path: Path) -> None:
    io = "rchar: 9\nwrite_bytes: 8192"
    lay(tmp_path, {**ORIN, "run/systemd/timesync/synchronized": "", "proc/self/io": io})
    vitals = VitalsReader(
        tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys", root=tmp_path, clock=VirtualClock()
    )
    found = vitals.read()
    assert (found.throttled, found.under_voltage, found.power_mode) == (False, False, "15W")
    assert (found.temperature_c, found.clock_synchronised, found.flash_bytes_written) == (53.5, True, 8192)
