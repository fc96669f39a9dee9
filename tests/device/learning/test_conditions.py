"""What guards and pace go by, on machines that exist only as files, and with a real trainer."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.clock import VirtualClock
from edged.device.learning.conditions import BoardWatch, ClockWatch, ConditionsReader, Pacer
from edged.domain.judging.latencies import Latencies
from edged.host.board import Board
from edged.host.vitals import VitalsReader
from tests.device.trainers import Plant

if TYPE_CHECKING:
    from pathlib import Path

    from edged.storage.models.bundles import Bundle


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_conditions_are_read_at_most_once_a_second(tmp_path: Path) -> None:
    zone = tmp_path / "class" / "thermal" / "thermal_zone0" / "temp"
    write(zone, "41000")
    clock, latencies = VirtualClock(1.7e9), Latencies()
    reader = ConditionsReader(clock, VitalsReader(tmp_path, sys=tmp_path), latencies)
    latencies.add(np.full(100, 0.020))
    first = reader.read()
    assert (first.temperature_c, first.serving_p99, first.on_battery) == (41.0, 0.020, None)
    assert first.load_per_core is not None
    write(zone, "80000")
    assert reader.read() is first
    clock.advance_to(1.7e9 + 1.5)
    second = reader.read()
    assert (second.temperature_c, second.serving_p99) == (80.0, None), "nothing was served since"


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

        heard: list[str] = []

        def on_message(message: dict[str, Any]) -> None:
            heard.append(message["type"])
            if message["type"] == "resting":
                served(0.001)

        served(0.050)
        result = process.run({"run": 1, "trigger": "labels"}, on_message)
    assert heard.count("resting") == 1
    assert result["type"] == "result"


def test_a_throttled_board_is_told_of_once_and_its_end_after_a_while() -> None:
    clock, told = VirtualClock(1.7e9), list[tuple[str, dict[str, Any]]]()
    board = [Board(throttled=False)]
    watch = BoardWatch(clock, lambda: board[0], lambda *event: told.append(event))

    def after(seconds: float, now: Board) -> None:
        clock.advance_to(clock.now() + seconds)
        board[0] = now
        watch.look()

    after(5, Board(throttled=False, reasons=("soft temperature limit",)))
    assert (told, list(watch.reasons)) == ([], [])
    after(5, Board(throttled=True, reasons=("throttled",)))
    after(5, Board(throttled=False))
    after(20, Board(under_voltage=True, reasons=("under-voltage",)))
    after(29, Board(throttled=False))
    assert list(watch.reasons) == ["under-voltage"]
    assert told == [("device_throttled", {"state": "start", "reasons": ["throttled"]})], "flags flicker"
    after(1, Board(throttled=False))
    assert list(watch.reasons) == []
    assert told[1:] == [("device_throttled", {"state": "end", "reasons": ["under-voltage"], "seconds": 25.0})]


def test_a_board_that_tells_nothing_is_never_in_trouble() -> None:
    told = list[Any]()
    watch = BoardWatch(VirtualClock(1.7e9), Board, lambda *event: told.append(event))
    watch.look()
    assert (told, watch.reasons) == ([], ())


def test_a_clock_that_is_set_is_told_of() -> None:
    clock, told = VirtualClock(1000.0), list[tuple[str, dict[str, Any]]]()
    watch = ClockWatch(clock, lambda *event: told.append(event))
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
        self.rests: list[float] = []

    def pace(self, rest: float) -> None:
        self.rests.append(rest)


def test_a_run_under_way_slows_down_while_the_board_is_in_trouble() -> None:
    told, troubled, latencies = Told(), [True], Latencies()
    alone = Pacer(None, latencies, told, lambda: troubled[0])  # type: ignore[arg-type]
    alone.look()
    troubled[0] = False
    alone.look()
    both = Pacer(0.010, latencies, told, lambda: troubled[0])  # type: ignore[arg-type]
    latencies.add(np.full(100, 0.020))
    both.look()
    troubled[0] = True
    both.look()
    assert told.rests == [9.0, 0.0, 0.5, 9.0]
