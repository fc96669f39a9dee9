"""How regularly samples of a key come, and when the next one is overdue."""

from __future__ import annotations

from dataclasses import dataclass

SILENT_SECONDS = 10.0  # a sensor is silent after this long at least ...
SILENT_TIMES = 5.0  # ... and so many times its usual pause
SMOOTHING = 0.1  # of the usual pause, for each batch


@dataclass(slots=True)
class KeyArrivals:
    """Arrivals of one key: time of its last sample (monotonic seconds), usual pause, samples, gaps.

    >>> sensor = KeyArrivals(0.0)
    >>> for second in (0.0, 1.0, 2.0):
    ...     sensor.record_arrivals(1, second)
    >>> sensor.is_silent(11.0), sensor.is_silent(13.0)
    (False, True)
    """

    heard: float
    pause: float | None = None
    count: int = 0
    gaps: int = 0

    def record_arrivals(self, count: int, monotonic: float) -> None:
        """Record the arrival of `count` samples."""
        since, self.heard = monotonic - self.heard, monotonic
        if self.count:
            if self.pause is not None and since > self.limit:
                self.gaps += 1
            else:
                pause = since / count
                self.pause = pause if self.pause is None else self.pause + SMOOTHING * (pause - self.pause)
        self.count += count

    @property
    def limit(self) -> float:
        """Seconds without a sample that count as a gap."""
        return max(SILENT_SECONDS, SILENT_TIMES * (self.pause or 0.0))

    def is_silent(self, monotonic: float) -> bool:
        """Whether its next sample is overdue."""
        return self.pause is not None and monotonic - self.heard > self.limit
