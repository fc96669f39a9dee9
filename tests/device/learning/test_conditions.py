"""What guards and pace go by, on machines that exist only as files, and with a real trainer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.clock import VirtualClock
from edged.device.events import Events, Listener
from edged.device.learning.conditions import BoardWatch, ClockWatch, ConditionsReader, Pacer
from edged.domain.judging.latencies import Latencies
from edged.domain.training.guards import FlashWear
from edged.domain.training.trainer_messages import RunPaused, RunRequest
from edged.host.board import BoardReader
from edged.host.vitals import VitalsReader
from tests.device.trainers import Plant

if TYPE_CHECKING:
    from edged.domain.events import Event
    from edged.domain.training.message import Message
    from edged.storage.models.bundles import Bundle


WELL, UNDER_VOLTAGE, THROTTLED, SOFT_LIMIT = "0", "1", "4", "8"  # flags of a Raspberry Pi


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


class Heard(Listener):
    """Keeps the events that it receives."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []

    def event(self, event: Event) -> None:
        self.events.append((event.name, event.to_json()))


class Machine:
    """A board that exists only as files, and a watch of it."""

    def __init__(self, root: Path, clock: VirtualClock) -> None:
        self._sys, self.clock, self._heard = root / "sys", clock, Heard()
        self.watch = BoardWatch(clock, BoardReader(sys=self._sys, root=root), Events(self._heard))

    @property
    def told(self) -> list[tuple[str, Mapping[str, Any]]]:
        return self._heard.events

    def after(self, seconds: float, flags: str) -> None:
        """Look again, with these flags of a Raspberry Pi's firmware."""
        self.clock.advance_to(self.clock.now() + seconds)
        write(self._sys / "devices" / "platform" / "soc" / "soc:firmware" / "get_throttled", flags)
        self.watch.look()


def test_conditions_are_read_at_most_once_a_second(tmp_path: Path) -> None:
    zone = tmp_path / "class" / "thermal" / "thermal_zone0" / "temp"
    write(zone, "41000")
    clock, latencies = VirtualClock(1.7e9), Latencies()
    reader = ConditionsReader(clock, VitalsReader(tmp_path, sys=tmp_path), latencies)
    latencies.add(np.full(100, 0.020))
    first = reader.read()
    assert (first.temperature_c, first.serving_p99, first.on_battery) == (41.0, 0.020, None)
    write(zone, "80000")
    assert reader.read() is first
    clock.advance_to(1.7e9 + 1.5)
    second = reader.read()
    assert (second.temperature_c, second.serving_p99) == (80.0, None), "nothing was served since"


def test_conditions_tell_of_the_board_and_of_flash_that_is_worn(tmp_path: Path) -> None:
    machine = Machine(tmp_path, VirtualClock(1.7e9))
    wear = FlashWear(1024.0, burst=4096)
    reader = ConditionsReader(machine.clock, VitalsReader(tmp_path), Latencies(), machine.watch, wear)
    assert (reader.read().board, reader.read().worn) == ((), False)
    machine.after(2, THROTTLED)
    found = reader.read(written=8192)
    assert (found.board, found.worn) == (("throttled",), True)
    machine.after(5, THROTTLED)
    assert not reader.read(written=8192).worn


def test_latencies_since_a_moment_leave_out_what_was_before() -> None:
    latencies = Latencies()
    assert latencies.p99_since(0) == (None, 0)
    latencies.add(np.full(6000, 1.0))
    p99, seen = latencies.p99_since(0)
    assert (p99, seen) == (1.0, 4096), "only the newest are kept"
    latencies.add(np.full(10, 0.5))
    assert latencies.p99_since(seen) == (0.5, 4106)


def test_slow_predictions_halt_the_trainer_and_fast_ones_let_it_go_on(tmp_path: Path, bundle: Bundle) -> None:
    latencies = Latencies()
    with closing(Plant(tmp_path, bundle).process()) as process:
        pacer = Pacer(0.010, latencies, process)

        def served(seconds: float) -> None:
            for _ in range(5):
                latencies.add(np.full(20, seconds))
                pacer.look()

        heard: list[type[Message]] = []

        def on_message(message: Message) -> None:
            heard.append(type(message))
            if isinstance(message, RunPaused):
                served(0.001)

        served(0.050)
        result = process.run(RunRequest(1, "labels"), on_message)
    assert heard.count(RunPaused) == 1
    assert result.run == 1


def test_a_throttled_board_is_told_of_once_and_its_end_after_a_while(tmp_path: Path) -> None:
    machine = Machine(tmp_path, VirtualClock(1.7e9))
    told, watch, after = machine.told, machine.watch, machine.after
    after(5, SOFT_LIMIT)
    assert (told, list(watch.reasons)) == ([], [])
    after(5, THROTTLED)
    after(5, WELL)
    after(20, UNDER_VOLTAGE)
    after(29, WELL)
    assert list(watch.reasons) == ["under-voltage"]
    assert told == [("device_throttled", {"state": "start", "reasons": ["throttled"]})], "flags flicker"
    after(1, WELL)
    assert list(watch.reasons) == []
    assert told[1:] == [("device_throttled", {"state": "end", "reasons": ["under-voltage"], "seconds": 25.0})]


def test_a_board_that_tells_nothing_is_never_in_trouble(tmp_path: Path) -> None:
    machine = Machine(tmp_path, VirtualClock(1.7e9))
    machine.watch.look()
    assert (machine.told, machine.watch.reasons) == ([], ())


def test_a_clock_that_is_set_is_told_of() -> None:
    clock, heard = VirtualClock(1000.0), Heard()
    told, watch = heard.events, ClockWatch(clock, Events(heard))
    clock.advance_to(1300.0)
    watch.look()
    clock.step(30.0)
    watch.look()
    assert told == [], "time that passes, and a correction, are no step"
    clock.step(1.7e9)
    watch.look()
    clock.step(-3600.0)
    watch.look()
    assert [(name, found["step_s"], found["before"]) for name, found in told] == [
        ("clock_set", 1.7e9, 1330.0), ("clock_set", -3600.0, 1.7e9 + 1330.0),
    ]  # fmt: skip


class Told:
    """Stands for the trainer: what it was told of its pace."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def pace(self, pause: float) -> None:
        self.pauses.append(pause)


def test_a_run_under_way_slows_down_while_the_board_is_in_trouble(tmp_path: Path) -> None:
    told, latencies, machine = Told(), Latencies(), Machine(tmp_path, VirtualClock(1.7e9))
    alone = Pacer(None, latencies, told, machine.watch)  # type: ignore[arg-type]
    machine.after(5, THROTTLED)
    alone.look()
    machine.after(BoardWatch.CALM, WELL)
    alone.look()
    both = Pacer(0.010, latencies, told, machine.watch)  # type: ignore[arg-type]
    latencies.add(np.full(100, 0.020))
    both.look()
    machine.after(5, THROTTLED)
    both.look()
    assert told.pauses == [9.0, 0.0, 0.5, 9.0]
