"""What is done regularly, whatever happens to the device's clock.

Intervals are counted on the monotonic clock: setting the clock neither delays them nor makes them up for.
A crontab is about the wall clock by its nature: after a step forwards a run that was missed is made up
for once, after a step backwards the next one is computed anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from zlib import crc32

from edged.clock import Clock
from edged.logs import get_logger

log = get_logger("edged.timetable")

LOOK_SECONDS = 1.0  # how often the wall clock is looked at
SPREAD_SECONDS = 10.0  # over which the same actions of several owners are spread
STEP_SECONDS = 60.0  # less is a correction of the clock, after which nothing is to be done twice


@dataclass
class _Interval:
    action: Callable[[], None]
    seconds: float
    next: float

    def due(self, clock: Clock) -> bool:
        """Whether it is time; if so the next time is set."""
        now = clock.monotonic()
        if now < self.next:
            return False
        # Those that were missed are made up for once; the others keep their beat.
        self.next += self.seconds * (1 + (now - self.next) // self.seconds)
        return True


@dataclass
class _Cron:
    action: Callable[[], None]
    trigger: Any
    seen: float
    next: float

    def due(self, clock: Clock) -> bool:
        """Whether it is time; if so the next time is set."""
        now, before = clock.now(), self.seen
        self.seen = now
        if now < before - STEP_SECONDS:
            self.next = _after(self.trigger, now)
        if now < self.next:
            return False
        self.next = _after(self.trigger, now)
        return True


def _after(trigger: Any, now: float) -> float:
    moment = datetime.fromtimestamp(now, timezone.utc).astimezone(trigger.timezone)
    found = trigger.get_next_fire_time(moment, moment)
    return float("inf") if found is None else float(found.timestamp())


class Scheduler:
    """Actions at intervals, by crontab, or soon; one after the other on a thread of their own.

    An action that fails is logged and done again when its time comes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: list[_Interval | _Cron] = []
        self._wake = threading.Event()
        self._soon: set[Callable[[], None]] = set()
        self._lock = threading.Lock()
        self._ending = False
        self._thread = threading.Thread(target=self._loop, name="timetable", daemon=True)

    def every(self, seconds: float, action: Callable[[], None], *, sooner: float = 0.0) -> None:
        """Do it each so many seconds, counted from now; the first time so many `sooner`."""
        self._entries.append(_Interval(action, seconds, self._clock.monotonic() + seconds - sooner))

    def cron(self, expression: str, action: Callable[[], None]) -> None:
        """Do it when a crontab line of five fields says so, in the device's time zone."""
        from apscheduler.triggers.cron import CronTrigger

        trigger, now = CronTrigger.from_crontab(expression), self._clock.now()
        self._entries.append(_Cron(action, trigger, now, _after(trigger, now)))

    def soon(self, action: Callable[[], None]) -> None:
        """Do it as soon as the thread is free; asked for twice it is done once. From any thread."""
        with self._lock:
            self._soon.add(action)
        self._wake.set()

    def drop(self, actions: Collection[Callable[[], None]]) -> None:
        """Do these no more; one that is being done goes on to its end."""
        with self._lock:
            self._entries = [entry for entry in self._entries if entry.action not in actions]
            self._soon -= set(actions)

    def start(self) -> None:
        """Start the thread that runs due actions."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop the thread after the present action."""
        self._ending = True
        self._wake.set()
        self._thread.join(timeout)

    def turn(self) -> None:
        """Run all actions that are due."""
        with self._lock:
            wanted, self._soon = self._soon, set()
        wanted |= {entry.action for entry in self._entries if entry.due(self._clock)}
        for action in wanted:
            try:
                action()
            except Exception:
                log.exception("regular_action_failed", action=getattr(action, "__name__", ""))

    def _loop(self) -> None:
        while not self._ending:
            self.turn()
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()


class Timetable:
    """The part of a scheduler that belongs to one of several owners, and goes with it.

    Its actions are done on the thread of `scheduler`, which its owner neither starts nor stops. Owners with
    other names have other moments, so that predictions do not wait while all of them report.
    """

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._scheduler = scheduler
        self._share = crc32(name.encode()) / 2**32
        self._actions: set[Callable[[], None]] = set()
        self._ended = False

    def every(self, seconds: float, action: Callable[[], None]) -> None:
        """Run an action regularly until the owner ends: see `Scheduler.every`."""
        self._actions.add(action)
        self._scheduler.every(seconds, action, sooner=self._share * min(seconds, SPREAD_SECONDS))

    def cron(self, expression: str, action: Callable[[], None]) -> None:
        """Run an action by a crontab until the owner ends: see `Scheduler.cron`."""
        self._actions.add(action)
        self._scheduler.cron(expression, action)

    def soon(self, action: Callable[[], None]) -> None:
        """See `Scheduler.soon`; nothing once it has ended."""
        if not self._ended:
            self._actions.add(action)
            self._scheduler.soon(action)

    def start(self) -> None:
        """Nothing: the thread runs."""

    def stop(self, timeout: float = 5.0) -> None:  # noqa: ARG002  as the scheduler's
        """Do none of its actions any more."""
        self._ended = True
        self._scheduler.drop(self._actions)
