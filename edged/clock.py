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

    def advance_to(self, now: float) -> None:
        """Set the virtual wall time; monotonic time moves only forward."""
        self._elapsed += max(0.0, now - self._now)
        self._now = now
