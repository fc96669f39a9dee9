"""Latency of predictions: percentiles over the newest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edged.domain.arrays import quantiles
from edged.domain.training.message import Message

LATENCIES = 4096


@dataclass(frozen=True)
class LatencyPercentiles(Message):
    """Median and 99th percentile in milliseconds; None before the first latency."""

    p50_ms: float | None
    p99_ms: float | None


class Latencies:
    """The newest latencies in seconds, for percentiles; single writer."""

    def __init__(self) -> None:
        self._count_in: Callable[[NDArray[np.float64]], None] | None = None
        self._ring = np.zeros(LATENCIES, np.float64)
        self._count = 0

    def add(self, seconds: NDArray[np.float64]) -> None:
        """Take in latencies `(n,)`."""
        newest = seconds[-LATENCIES:]
        self._ring[(self._count + np.arange(len(newest))) % LATENCIES] = newest
        self._count += len(newest)
        if self._count_in is not None:
            self._count_in(seconds)

    def count_in(self, count: Callable[[NDArray[np.float64]], None]) -> None:
        """Pass all later latencies to `count` too; it replaces an earlier one."""
        self._count_in = count

    def percentiles(self) -> LatencyPercentiles:
        """Median and 99th percentile in milliseconds."""
        held = min(self._count, LATENCIES)
        if held == 0:
            return LatencyPercentiles(None, None)
        p50, p99 = quantiles(self._ring[:held], [0.5, 0.99])
        return LatencyPercentiles(round(float(p50) * 1e3, 3), round(float(p99) * 1e3, 3))

    def p99_since(self, count: int) -> tuple[float | None, int]:
        """The 99th percentile in seconds of all after the first `count`, and how many there are now."""
        now = self._count
        fresh = min(now - count, LATENCIES)
        if fresh <= 0:
            return None, now
        newest = self._ring[(now - fresh + np.arange(fresh)) % LATENCIES]
        return float(quantiles(newest, [0.99])[0]), now
