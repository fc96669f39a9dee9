from __future__ import annotations

import threading
from collections import Counter, defaultdict
from datetime import datetime
from functools import partial
from itertools import pairwise

import pytest

from edged.clock import SystemClock, VirtualClock
from edged.host.scheduler import Scheduler, Timetable

YEARS = 10 * 365.25 * 86400.0


def local(*moment: int) -> float:
    """A moment in the time zone of this machine."""
    return datetime(*moment).astimezone().timestamp()  # type: ignore[arg-type]


def start(
    clock: VirtualClock, *, every: float | None = None, cron: str | None = None
) -> tuple[Scheduler, list[float]]:
    """A timetable that is turned by hand, and when its action was done."""
    done: list[float] = []
    table = Scheduler(clock)
    if every is not None:
        table.every(every, lambda: done.append(clock.monotonic()))
    if cron is not None:
        table.cron(cron, lambda: done.append(clock.now()))
    return table, done


def pass_time(clock: VirtualClock, table: Scheduler, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance_to(clock.now() + 1.0)
        table.turn()


@pytest.mark.parametrize("step", [YEARS, -YEARS, 3600.0, -1.0])
def test_an_interval_does_not_notice_that_the_clock_is_set(step: float) -> None:
    clock = VirtualClock(1.8e9)
    table, done = start(clock, every=10.0)
    pass_time(clock, table, 25)
    clock.step(step)
    pass_time(clock, table, 25)
    assert done == [10.0, 20.0, 30.0, 40.0, 50.0]


def test_intervals_that_were_missed_are_made_up_for_once() -> None:
    clock = VirtualClock(0.0)
    table, done = start(clock, every=10.0)
    clock.advance_to(57.0)
    table.turn()
    pass_time(clock, table, 10)
    assert done == [57.0, 60.0]


def test_a_crontab_is_made_up_for_once_after_a_step_forwards() -> None:
    clock = VirtualClock(local(2026, 3, 1, 2, 59, 50))
    table, done = start(clock, cron="0 3 * * *")
    pass_time(clock, table, 20)
    assert len(done) == 1
    clock.step(YEARS)
    pass_time(clock, table, 20)
    assert len(done) == 2
    pass_time(clock, table, 600)
    assert len(done) == 2


def test_a_crontab_does_not_wait_for_years_after_a_step_back() -> None:
    clock = VirtualClock(local(2036, 3, 1, 12))
    table, done = start(clock, cron="0 3 * * *")
    table.turn()
    clock.step(local(2026, 3, 1, 2, 59, 50) - clock.now())
    pass_time(clock, table, 20)
    assert done == [local(2026, 3, 1, 3)]
    clock.step(-5.0)  # a small correction: not once more
    clock.step(-10.0)
    pass_time(clock, table, 30)
    assert len(done) == 1


def test_what_is_wanted_soon_is_done_once_and_an_error_stops_nothing() -> None:
    table = Scheduler(SystemClock())
    done = threading.Semaphore(0)

    def bad() -> None:
        raise ValueError("not now")

    def good() -> None:
        done.release()

    for action in (bad, good, good):
        table.soon(action)
    table.start()
    assert done.acquire(timeout=10)
    table.soon(good)
    assert done.acquire(timeout=10)
    table.stop()
    assert not done.acquire(blocking=False)


def test_owners_with_other_names_report_at_other_moments() -> None:
    clock = VirtualClock(1.8e9)
    scheduler, done = Scheduler(clock), defaultdict[str, list[float]](list)

    def report(name: str) -> None:
        done[name].append(clock.monotonic())

    for name in map(str, range(100)):
        Timetable(scheduler, name).every(10.0, partial(report, name))
    pass_time(clock, scheduler, 40)
    assert len(done) == 100
    for moments in done.values():
        assert len(moments) in (4, 5)
        assert {after - before for before, after in pairwise(moments)} == {10.0}
    firsts = Counter(moments[0] for moments in done.values())
    assert len(firsts) >= 10
    assert max(firsts.values()) <= 25
