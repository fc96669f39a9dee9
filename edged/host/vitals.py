"""Vital signs of this process and this machine, from /proc and /sys, with the standard library only."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path

from edged.clock import Clock, SystemClock
from edged.domain.training.message import Message
from edged.host.board import BoardReader
from edged.host.kernel import synchronised, text

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Zones that are switched off report values such as -274000 or 2147483647.
_PLAUSIBLE_C = (-50.0, 200.0)
# Zones of Jetson boards that measure nothing: the first always says 100 °C, the other is an estimate.
_NO_SENSOR = ("PMIC-Die", "thermal-fan-est")


@dataclass(frozen=True)
class BoardVitals(Message):
    """Heat, power and clock of the board; None where it does not report them."""

    temperature_c: float | None = None  # hottest thermal zone, degrees Celsius
    throttled: bool | None = None  # this and the next two are of the board, see `Board`
    under_voltage: bool | None = None
    power_mode: str | None = None
    on_battery: bool | None = None  # whether no other supply feeds the machine; None where it names none
    battery_percent: float | None = None  # charge of the fullest battery
    clock_synchronised: bool | None = None  # whether a time server has set the clock, see `synchronised`


@dataclass(frozen=True)
class Vitals(BoardVitals):
    """One reading; None where this machine does not report it."""

    cpu_percent: float | None = None  # CPU time since the reading before, in percent of one core
    rss_bytes: int | None = None  # resident memory of this process
    load1: float | None = None  # load average over one minute
    disk_free_bytes: int | None = None  # what this user may still write beside the state directory
    uptime_s: float | None = None  # seconds since the machine was started
    flash_bytes_written: int | None = None  # by this process and its children, since it began


class VitalsReader:
    """Reads vital signs; never raises, whatever the machine lacks.

    `path` is on the file system whose free space matters; procfs and sysfs are mounted at `proc` and `sys`.
    A reading holds for `fresh` seconds, all but what was written: for those that share one reader.
    """

    def __init__(
        self,
        path: Path,
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        root: Path = Path("/"),
        clock: Clock | None = None,
        fresh: float = 0.0,
    ) -> None:
        self._path = path
        self._proc = proc
        self._sys = sys
        self._root = root
        self._board = BoardReader(sys=sys, root=root)
        self._clock = clock or SystemClock()
        self._fresh = fresh
        self._held: Vitals | None = None
        # When, of which child and how much was written.
        self._written: tuple[float, int | None, int | None] | None = None
        self._last = (self._clock.monotonic(), self.cpu_seconds())

    def read(self, child: int | None = None) -> Vitals:
        """Read the vital signs; `cpu_percent` counts from the reading before (first: from the start).

        `child` is the process id of a child that still lives, for what it has written.
        """
        held = self._held
        if held is None or self._clock.monotonic() - self._last[0] >= self._fresh:
            self._held = held = self._read()
        return replace(held, flash_bytes_written=self.flash_bytes(child))

    def board(self) -> BoardVitals:
        """Read heat, power and clock."""
        values = vars(self.read())
        return BoardVitals(**{field.name: values[field.name] for field in fields(BoardVitals)})

    def _read(self) -> Vitals:
        pages, board = _field(self._proc / "self" / "statm", 1), self._board.read()
        return Vitals(
            cpu_percent=self._cpu_percent(),
            rss_bytes=None if pages is None else int(pages) * _PAGE_BYTES,
            load1=_field(self._proc / "loadavg", 0),
            disk_free_bytes=self._disk_free(),
            uptime_s=_field(self._proc / "uptime", 0),
            temperature_c=self._temperature(),
            throttled=board.throttled,
            under_voltage=board.under_voltage,
            power_mode=board.power_mode,
            on_battery=self._on_battery(),
            battery_percent=self._battery(),
            clock_synchronised=synchronised(self._root),
        )

    def _cpu_percent(self) -> float | None:
        (then, before), now, used = self._last, self._clock.monotonic(), self.cpu_seconds()
        self._last = (now, used)
        if used is None or before is None or now <= then:
            return None
        return 100.0 * (used - before) / (now - then)

    def cpu_seconds(self) -> float | None:
        """CPU seconds of this process since its start; None if the system does not tell."""
        # The name in parentheses may hold spaces, so fields are counted from behind it.
        fields_text = text(self._proc / "self" / "stat").rpartition(")")[2]
        user, system = _nth(fields_text, 11), _nth(fields_text, 12)
        return None if user is None or system is None else (user + system) / _TICKS_PER_S

    def _temperature(self) -> float | None:
        zones = (self._sys / "class" / "thermal").glob("thermal_zone*/temp")
        real = (zone for zone in zones if text(zone.with_name("type")) not in _NO_SENSOR)
        degrees = [value / 1000 for zone in real if (value := _field(zone, 0)) is not None]
        low, high = _PLAUSIBLE_C
        return max((value for value in degrees if low <= value <= high), default=None)

    def _supplies(self, *kinds: str) -> list[Path]:
        found = (self._sys / "class" / "power_supply").glob("*/type")
        return [path.parent for path in found if text(path) in kinds]

    def _on_battery(self) -> bool | None:
        batteries = self._supplies("Battery")
        if any(_field(supply / "online", 0) == 1 for supply in self._supplies("Mains", "USB")):
            return False
        if any(text(battery / "status") == "Discharging" for battery in batteries):
            return True
        return None

    def _battery(self) -> float | None:
        charges = [_field(battery / "capacity", 0) for battery in self._supplies("Battery")]
        return max((charge for charge in charges if charge is not None), default=None)

    def flash_bytes(self, child: int | None = None) -> int | None:
        """Bytes that this process, its ended children and the living one with the id `child` have written."""
        now, held = self._clock.monotonic(), self._written
        if held is None or held[1] != child or now - held[0] >= self._fresh:
            self._written = held = now, child, self._flash_bytes(child)
        return held[2]

    def _flash_bytes(self, child: int | None) -> int | None:
        # The child first: one that ends in between counts twice for a moment the other way round.
        more = None if child is None else written_bytes(child, self._proc)
        own = written_bytes(proc=self._proc)
        return None if own is None else own + (more or 0)

    def _disk_free(self) -> int | None:
        try:
            found = os.statvfs(self._path)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize


def written_bytes(pid: int | str = "self", proc: Path = Path("/proc")) -> int | None:
    """What a process, with its children that have ended, has handed to a disk; None where untold.

    Pages of the cache that it made dirty (`write_bytes`, proc(5)): what lies on tmpfs is not among them, nor
    is the file system's journal.
    """
    for line in text(proc / str(pid) / "io").splitlines():
        name, _, value = line.partition(":")
        if name == "write_bytes":
            return int(value)
    return None


def _nth(line: str, index: int) -> float | None:
    try:
        return float(line.split()[index])
    except (IndexError, ValueError):
        return None


def _field(path: Path, index: int) -> float | None:
    return _nth(text(path), index)
