"""Whose trainer runs next where streams wait for the one slot: what its run would gain decides."""

from __future__ import annotations

import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from edged.config import loader
from edged.device.learning.trainer_client import TrainerClient
from edged.device.learning.trainer_slot import (
    COMMAND_URGENCY,
    DRIFT_URGENCY,
    ENOUGH_LABELS,
    LONGEST_AHEAD,
    RunGain,
    TrainerSlot,
    Waiting,
    next_turn,
)
from tests.running_device import wait_until


class Waiters:
    """Streams that take one turn each on threads of their own; `order` is in which they had it."""

    def __init__(self, folder: Path) -> None:
        self.slot, self.order = TrainerSlot(), list[str]()
        self._folder = folder
        self._threads: list[threading.Thread] = []

    def client(self, name: str) -> TrainerClient:
        """The client of one stream, whose process has not begun."""
        values = {
            "device": {"id": "rig"},
            "stream": {"features": 1},
            "storage": {"dir": str(self._folder / name)},
        }
        return TrainerClient(loader.from_values(values), durable=False)

    def wait(self, name: str, gain: RunGain) -> None:
        """Let a stream wait for its turn; returns once it does."""
        client = self.client(name)

        def take() -> None:
            with self.slot.turn(client, name, gain):
                self.order.append(name)

        thread = threading.Thread(target=take)
        thread.start()
        self._threads.append(thread)
        wait_until(lambda: client in self.slot._waiting)  # noqa: SLF001  nothing tells of it

    def join(self) -> None:
        """Until all had their turns."""
        for thread in self._threads:
            thread.join(10)


def test_what_a_run_would_gain_decides_who_is_next(tmp_path: Path) -> None:
    streams = Waiters(tmp_path)
    with streams.slot.turn(streams.client("first"), "first", RunGain()):
        streams.wait("few", RunGain(1.0))
        streams.wait("many", RunGain(5.0))
        streams.wait("drifted", RunGain(1.0, drifted=True))
        streams.wait("asked", RunGain(0.0, asked=True))
        assert streams.order == []
    streams.join()
    assert streams.order == ["asked", "drifted", "many", "few"]


GAINS = st.builds(RunGain, st.floats(0, 1e6), st.booleans(), st.booleans())


def test_more_new_labels_go_first() -> None:
    assert (
        next_turn([Waiting("few", 0.0, RunGain(1.0)), Waiting("many", 0.0, RunGain(4.0))], 1.0).name == "many"
    )


def test_a_drift_goes_before_labels_and_a_command_before_both() -> None:
    labels, drift = Waiting("labels", 0.0, RunGain(1e9)), Waiting("drift", 0.0, RunGain(1.0, drifted=True))
    asked = Waiting("asked", 0.0, RunGain(0.0, asked=True))
    assert next_turn([labels, drift], 0.0).name == "drift"
    assert next_turn([labels, drift, asked], 0.0).name == "asked"


def test_of_equals_the_first_that_came_goes_first() -> None:
    assert next_turn([Waiting("b", 2.0), Waiting("a", 1.0), Waiting("c", 3.0)], 3.0).name == "a"


@given(GAINS, GAINS)
def test_whoever_waits_long_enough_goes_before_all_that_come_later(early: RunGain, late: RunGain) -> None:
    first = Waiting("first", 0.0, early)
    assert next_turn([Waiting("late", LONGEST_AHEAD + 1.0, late), first], LONGEST_AHEAD + 1.0) == first


@given(st.lists(GAINS, min_size=1, max_size=8), st.integers(0, 60))
def test_none_starves_while_others_come_again_and_again(gains: list[RunGain], seconds: int) -> None:
    """A stream with the least to gain gets its turn though the others queue again as soon as they ran."""
    run = 1.0 + seconds
    waiting = [Waiting("poor", 0.0, RunGain(0.0))]
    waiting += [Waiting(str(i), 0.0, gain) for i, gain in enumerate(gains)]
    now, turns = 0.0, 0
    while (one := next_turn(waiting, now)).name != "poor":
        now, turns = now + run, turns + 1
        waiting = [other for other in waiting if other.name != one.name] + [Waiting(one.name, now, one.gain)]
        assert now <= LONGEST_AHEAD + run * (len(gains) + 1)


def test_urgency_is_bounded() -> None:
    assert RunGain(1e12, drifted=True, asked=True).urgency == ENOUGH_LABELS + DRIFT_URGENCY + COMMAND_URGENCY
