"""Time as a part that can be exchanged: the device's clock, or a virtual one for replays."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for stamps, monotonic time for durations, both in seconds."""

    def now(self) -> float:
        """Unix time in seconds."""

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since boot; never goes back."""
        return time.monotonic()


class Ages:
    """How old a stamp of the wall clock is, although the clock may have been set since.

    A device without a battery-backed clock starts somewhere in the past and is set when it finds a time
    server; what it had stored until then is not older for that. Steps of more than `STEP` seconds
    forwards are noticed by the monotonic clock, at every question; a step back takes them back.

    >>> clock = VirtualClock(100.0); ages = Ages(clock)
    >>> clock.step(3600.0); ages.age(100.0, clock.now()), ages.age(3700.0, clock.now())
    (0.0, 0.0)
    """

    STEP = 60.0
    _KEPT = 16

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lead = clock.now() - clock.monotonic()
        self._steps: list[tuple[float, float]] = []

    def age(self, stamp: float, now: float) -> float:
        """Seconds that have passed since `stamp`, as far as this process can know."""
        self._look()
        return now - stamp - sum(size for before, size in self._steps if stamp <= before)

    def before(self, age: float, now: float) -> float:
        """A moment before which every stamp is older than `age` seconds."""
        self._look()
        return now - age - sum(size for _, size in self._steps)

    def _look(self) -> None:
        now = self._clock.now()
        lead = now - self._clock.monotonic()
        change, self._lead = lead - self._lead, lead
        if change > self.STEP:
            self._steps = [*self._steps, (now - change, change)][-self._KEPT :]
        back = -change
        while back > self.STEP and self._steps:
            before, size = self._steps.pop()
            if size > back + self.STEP:
                self._steps.append((before, size - back))
            back -= size


class VirtualClock:
    """A clock that stands still until it is moved.

    >>> clock = VirtualClock(100.0)
    >>> clock.advance_to(103.5); clock.now()
    103.5
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._elapsed = 0.0

    def now(self) -> float:
        """Virtual Unix time in seconds."""
        return self._now

    def monotonic(self) -> float:
        """Virtual seconds since the start; never goes back, even where `now` does."""
        return self._elapsed

    def step(self, seconds: float) -> None:
        """Set the wall clock forwards or back, as a time server does; no time passes."""
        self._now += seconds

    def advance_to(self, now: float) -> None:
        """Set the virtual wall time; monotonic time moves only forward."""
        self._elapsed += max(0.0, now - self._now)
        self._now = now
