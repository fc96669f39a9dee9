"""What the board itself says of its power and its heat, read from files of the kernel and never written.

Where the figures are from:

* Raspberry Pi: the firmware's flags in `devices/platform/soc/soc:firmware/get_throttled` (hexadecimal; bits
  as of `vcgencmd get_throttled`, Raspberry Pi documentation, "os: get_throttled"). Kernels without that file
  have the driver `raspberrypi-hwmon`: `class/hwmon/hwmon*/` with `name` `rpi_volt` and `in0_lcrit_alarm`.
* Jetson (JetPack 5 and 6): `class/hwmon/hwmon*/` with `name` `soctherm_oc` and `oc1_event_cnt`
  (under-voltage), `oc2_event_cnt` and `oc3_event_cnt` (average and instantaneous over-current), each time
  with a slower clock; counters, so that what counts is whether they rise. The power mode is `pmode:0000` in
  `/var/lib/nvpmodel/status` and its name in `/etc/nvpmodel.conf` (NVIDIA Jetson Linux Developer Guide,
  "Platform Power and Performance").
* Any board: `class/thermal/cooling_device*/` whose `type` names cpufreq, or is ACPI's `Processor`, and whose
  `cur_state` is above 0: the kernel holds the clock of the processor down.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from edged.host.kernel import number, text

UNDER_VOLTAGE, CAPPED, THROTTLED, SOFT_LIMIT = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FLAGS = {CAPPED: "frequency capped", THROTTLED: "throttled", SOFT_LIMIT: "soft temperature limit"}
_OVER_CURRENT = ("oc2_event_cnt", "oc3_event_cnt")
_MODE = re.compile(r"pmode:(\d+)")
_MODEL = re.compile(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>")


@dataclass(frozen=True, slots=True)
class Board:
    """One reading; None where this board does not tell.

    The soft temperature limit of a Raspberry Pi, which takes little speed, is only told of in `reasons`.
    """

    throttled: bool | None = None  # whether the processor is held below its clock, for heat or for power
    under_voltage: bool | None = None  # whether the supply gives too little
    reasons: tuple[str, ...] = ()  # what exactly, in words
    power_mode: str | None = None  # of a Jetson, by its name in `/etc/nvpmodel.conf`, else by its number

    @property
    def troubled(self) -> bool:
        """Whether work that can wait should wait."""
        return bool(self.throttled or self.under_voltage)


class BoardReader:
    """Reads the board; never raises. A counter counts from the reading before, so there is one reader a use.

    `sys` is where sysfs is mounted; the files of nvpmodel are below `root`.
    """

    def __init__(self, *, sys: Path = Path("/sys"), root: Path = Path("/")) -> None:
        self._sys = sys
        self._root = root
        self._counted: dict[Path, int] = {}
        self.read()

    def read(self) -> Board:
        """Read the state of the board."""
        flags, chips = self._firmware(), self._chips()
        throttled: list[bool] = []
        low: list[bool] = []
        reasons: list[str] = []
        if flags is not None:
            throttled.append(bool(flags & (CAPPED | THROTTLED)))
            low.append(bool(flags & UNDER_VOLTAGE))
            reasons += [name for bit, name in _FLAGS.items() if flags & bit]
        if (pi := chips.get("rpi_volt")) and (alarm := number(pi / "in0_lcrit_alarm")) is not None:
            low.append(alarm == 1)
        if (jetson := chips.get("soctherm_oc")) is not None:
            low += self._rises(jetson, ("oc1_event_cnt",))
            over = self._rises(jetson, _OVER_CURRENT)
            throttled += over
            reasons += ["over-current"] * any(over)
        held = self._held_down()
        throttled += held
        reasons += ["processor cooled"] * any(held)
        reasons = ["under-voltage"] * any(low) + reasons
        return Board(
            any(throttled) if throttled else None,
            any(low) if low else None,
            tuple(reasons),
            self._power_mode(),
        )

    def _firmware(self) -> int | None:
        file = self._sys / "devices" / "platform" / "soc" / "soc:firmware" / "get_throttled"
        try:
            return int(text(file), 16)
        except ValueError:
            return None

    def _chips(self) -> dict[str, Path]:
        """The directories of sensor chips by name; their numbers change from start to start."""
        found = sorted((self._sys / "class" / "hwmon").glob("hwmon*/name"))
        return {text(path): path.parent for path in found}

    def _rises(self, chip: Path, names: tuple[str, ...]) -> list[bool]:
        """Whether each counter has risen since the reading before; the first reading says no."""
        rises = []
        for path in (chip / name for name in names):
            count = number(path)
            if count is not None:
                rises.append(count > self._counted.get(path, count))
                self._counted[path] = count
        return rises

    def _held_down(self) -> list[bool]:
        """For each cooling device of a processor, whether it is at work."""
        states = []
        for path in (self._sys / "class" / "thermal").glob("cooling_device*/type"):
            kind = text(path)
            if "cpufreq" in kind or kind == "Processor":
                state = number(path.parent / "cur_state")
                states += [] if state is None else [state > 0]
        return states

    def _power_mode(self) -> str | None:
        found = _MODE.search(text(self._root / "var" / "lib" / "nvpmodel" / "status"))
        if found is None:
            return None
        mode = int(found[1])
        names = _MODEL.findall(text(self._root / "etc" / "nvpmodel.conf"))
        return next((name for of, name in names if int(of) == mode), str(mode))
