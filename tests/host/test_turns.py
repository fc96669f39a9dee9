"""Loops that share threads: whose turn is next, and what one loop may do to the others."""

from __future__ import annotations

import threading

import pytest

from edged.host.turns import Turns, TurnThreads

PATIENCE = 20.0


class Loop:
    """Notes its turns in `order`, and is over after `last` of them."""

    def __init__(self, name: str, threads: TurnThreads, order: list[str], last: int = 1) -> None:
        self.name, self.order, self.last = name, order, last
        self.turns = Turns(threads)
        self.taken = 0
        self.woken: list[bool] = []
        self.waits: float | None = None

    def patience(self) -> float | None:
        return self.waits

    def turn(self, *, woken: bool) -> bool:
        self.turns.clear()
        self.order.append(self.name)
        self.woken.append(woken)
        self.taken += 1
        return self.taken < self.last

    def start(self) -> None:
        self.turns.start(self)

    def join(self) -> None:
        self.turns.join(PATIENCE)
        assert not self.turns.alive


class Flood(Loop):
    """Has more work after each turn."""

    def turn(self, *, woken: bool) -> bool:
        goes_on = super().turn(woken=woken)
        self.turns.set()
        return goes_on


class Blocked(Loop):
    """Waits within its turn until it is let go on."""

    def __init__(self, name: str, threads: TurnThreads, order: list[str]) -> None:
        super().__init__(name, threads, order)
        self.began, self.goes_on = threading.Event(), threading.Event()

    def turn(self, *, woken: bool) -> bool:
        self.began.set()
        with self.turns.apart():
            assert self.goes_on.wait(PATIENCE)
        return super().turn(woken=woken)


class Stuck(Blocked):
    """Does not let others have its thread meanwhile."""

    def turn(self, *, woken: bool) -> bool:
        self.began.set()
        assert self.goes_on.wait(PATIENCE)
        return Loop.turn(self, woken=woken)


class Broken(Loop):
    """Fails in its first turn."""

    def turn(self, *, woken: bool) -> bool:
        goes_on = super().turn(woken=woken)
        if self.taken == 1:
            raise ValueError("broken")
        return goes_on


def test_a_flood_of_one_loop_leaves_every_second_turn_to_another() -> None:
    order: list[str] = []
    threads = TurnThreads("t", 1)
    gate = Stuck("gate", threads, order)  # both wait for the only thread before it goes on
    flood, other = Flood("flood", threads, order, last=50), Flood("other", threads, order, last=10)
    gate.start()
    assert gate.began.wait(PATIENCE)
    flood.start()
    other.start()
    gate.goes_on.set()
    for loop in (flood, other, gate):
        loop.join()
    turns = [name for name in order if name != "gate"]
    assert turns == ["flood", "other"] * 10 + ["flood"] * 40


def test_who_waits_apart_holds_up_no_other_on_the_only_thread() -> None:
    order: list[str] = []
    threads = TurnThreads("t", 1)
    blocked, other = Blocked("blocked", threads, order), Loop("other", threads, order)
    blocked.start()
    assert blocked.began.wait(PATIENCE)
    other.start()
    other.join()
    blocked.goes_on.set()
    blocked.join()
    assert order == ["other", "blocked"]


def test_who_is_woken_has_a_thread_that_turns_by_themselves_do_not_get() -> None:
    order: list[str] = []
    threads = TurnThreads("t", 2, kept=1)
    disk, late = Stuck("disk", threads, order), Loop("late", threads, order)
    message = Loop("message", threads, order)
    disk.start()
    assert disk.began.wait(PATIENCE)
    late.start()
    message.start()
    message.turns.set()  # it waits for its first turn by now, and is woken there
    message.join()
    assert order == ["message"]
    disk.goes_on.set()
    disk.join()
    late.join()
    assert order == ["message", "disk", "late"]


def test_a_turn_by_itself_that_waits_apart_leaves_its_thread_to_another() -> None:
    order: list[str] = []
    threads = TurnThreads("t", 2, kept=1)
    blocked, other = Blocked("blocked", threads, order), Loop("other", threads, order)
    blocked.start()
    assert blocked.began.wait(PATIENCE)
    other.start()
    other.join()
    blocked.goes_on.set()
    blocked.join()
    assert order == ["other", "blocked"]


def test_a_turn_comes_by_itself_when_the_patience_has_ended() -> None:
    loop = Loop("late", TurnThreads("t", 2), [], last=3)
    loop.waits = 0.01
    loop.start()
    loop.join()
    assert loop.woken[1:] == [False, False]


def test_without_patience_a_loop_sleeps_until_it_is_woken() -> None:
    threads = TurnThreads("t", 1)
    asleep, other = Loop("asleep", threads, [], last=2), Loop("other", threads, [], last=30)
    other.waits = 0.001
    asleep.start()
    other.start()
    other.join()
    assert asleep.taken == 1
    asleep.turns.set()
    asleep.join()
    assert asleep.woken[1:] == [True]


def test_an_error_in_a_turn_ends_neither_the_loop_nor_the_thread() -> None:
    order: list[str] = []
    threads = TurnThreads("t", 1)
    broken, other = Broken("broken", threads, order, last=2), Loop("other", threads, order)
    broken.start()
    other.start()
    other.join()
    broken.turns.set()
    broken.join()


def test_threads_end_with_the_last_loop_and_begin_again_with_another() -> None:
    threads = TurnThreads("ends-with-the-last", 2)
    for _ in range(2):
        loops = [Flood("x", threads, [], last=100) for _ in range(5)]
        for loop in loops:
            loop.start()
        running = [one for one in threading.enumerate() if one.name == "ends-with-the-last"]
        for loop in loops:
            loop.join()
        for thread in running:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert len(running) <= 2


@pytest.mark.parametrize("kept", [0, 1])
def test_no_turn_is_lost_between_many_threads(kept: int) -> None:
    threads, count = TurnThreads("t", 3, kept), 3000

    class Counter(Loop):
        """Takes what was put before it was woken."""

        def __init__(self) -> None:
            super().__init__("counter", threads, [])
            self.put = self.got = 0

        def turn(self, *, woken: bool) -> bool:
            self.turns.clear()
            self.got = self.put
            return self.got < count

    counters = [Counter() for _ in range(4)]
    for counter in counters:
        counter.start()

    def put(counter: Counter) -> None:
        for _ in range(count):
            counter.put += 1
            counter.turns.set()

    putting = [threading.Thread(target=put, args=(counter,)) for counter in counters]
    for thread in putting:
        thread.start()
    for counter in counters:
        counter.join()
    for thread in putting:
        thread.join(PATIENCE)
