"""ADWIN: a window that grows until two parts of it have different means."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, sqrt
from typing import ClassVar

from edged.domain.drift.signals import DRIFT, LARGEST, NONE, WARNING, Level, StreamDetector, require

WARNING_DELTA = 0.02  # confidence of the warning level: that of a drift cannot be larger


@dataclass(slots=True)
class ADWIN(StreamDetector):
    """Adaptive windowing (ADWIN2), on readings within 0 and 1.

    The window is held as an exponential histogram: row i has at most `max_buckets` buckets, each the
    sum of 2^i neighbouring readings, so memory grows with the logarithm of the window. At every
    `clock`-th reading each border of two buckets is tried as a cut into an older part of n0 and a
    newer one of n1 readings. With the variance σ² of the window and, L being `min_window_length`, ::

        1/m = 1 / (n0 - L + 1) + 1 / (n1 - L + 1),   d = ln(2 ln(n) / delta)
        change: |mean0 - mean1| > sqrt(2 / m * σ² * d) + 2 / (3 m) * d

    (equation 3.1 of the paper, with the parts counted a little shorter). After a change the window
    starts anew. `statistic` and `threshold` belong to the newest test at warning level or above; a drift has
    `statistic` > `threshold`.

    Parameters
    ----------
    delta
        Confidence of the test; the probability of a false alarm at one test is below it.
    clock
        Test at every so many readings.
    max_buckets
        Buckets of a size: more give finer cuts and cost more.
    min_window_length
        The shortest part that is tested.
    grace_period
        No test before more than so many readings.
    mode
        "both": any change is a drift. "up": only a rise is; a fall starts the window anew in
        silence, as a model that has become better is no reason to train. "down": the reverse.
    warning_delta
        Confidence of the warning level, which the paper does not have.

    References
    ----------
    A. Bifet, R. Gavaldà: Learning from time-changing data with adaptive windowing. SDM 2007.

    Examples
    --------
    >>> detector = ADWIN()
    >>> levels = [detector.update(x) for x in [0, 0, 0, 1] * 250 + [1, 0] * 250]
    >>> levels.index(Level.DRIFT)
    1119
    """

    name: ClassVar[str] = "adwin"
    parameters: ClassVar[tuple[str, ...]] = (
        "delta", "clock", "max_buckets", "min_window_length", "grace_period", "mode", "warning_delta",
    )  # fmt: skip

    delta: float = 0.002
    clock: int = 32
    max_buckets: int = 5
    min_window_length: int = 5
    grace_period: int = 10
    mode: str = "both"
    warning_delta: float = WARNING_DELTA
    ticks: int = 0
    n: int = 0
    total: float = 0.0
    spread: float = 0.0  # sum of squared deviations from the mean
    rows: list[list[float]] = field(default_factory=list)  # oldest bucket first
    statistic: float = 0.0
    threshold: float = 0.0

    def __post_init__(self) -> None:
        require(0 < self.delta <= self.warning_delta < 1, self.name, "0 < delta <= warning_delta < 1")
        require(min(self.clock, self.min_window_length) >= 1, self.name, "clock and min_window_length >= 1")
        require(self.max_buckets >= 2, self.name, "max_buckets >= 2")
        require(self.mode in ("up", "down", "both"), self.name, 'mode is "up", "down" or "both"')

    @property
    def mean(self) -> float:
        """Mean of the window; 0 while it is empty."""
        return self.total / self.n if self.n else 0.0

    def update(self, value: float) -> Level:
        """Take in one reading; NaN and infinity neither count nor change anything (level NONE)."""
        value = float(value)
        if not -LARGEST < value < LARGEST:  # NaN too
            return NONE
        n = self.n
        if n:
            off = value - self.total / n
            self.spread += off * off * n / (n + 1)
        self.n = n + 1
        self.total += value
        self._insert(value)
        self.ticks += 1
        if self.ticks % self.clock or n < self.grace_period or not self._ready():
            return NONE
        return self._test()

    def _insert(self, total: float) -> None:
        """Add the newest bucket; where a row overflows, its two oldest become one of the next row."""
        for row in self.rows:
            row.append(total)
            if len(row) <= self.max_buckets:
                return
            total = row.pop(0) + row.pop(0)
        self.rows.append([total])

    def _test(self) -> Level:
        """Try all cuts, oldest first; the first beyond the drift threshold counts."""
        n, total = self.n, self.total
        shortest = self.min_window_length
        wide = log(2.0 * log(n) / self.delta)
        near = log(2.0 * log(n) / self.warning_delta)
        deviation = 2.0 * self.spread / n
        stretch = self._correlation()
        level, n0, sum0 = NONE, 0, 0.0
        for i in range(len(self.rows) - 1, -1, -1):
            size = 1 << i
            for bucket in self.rows[i]:
                n0 += size
                sum0 += bucket
                n1 = n - n0
                if n1 < shortest:
                    return level
                if n0 < shortest:
                    continue
                gap = (total - sum0) / n1 - sum0 / n0
                m = stretch / (n0 - shortest + 1) + stretch / (n1 - shortest + 1)
                if abs(gap) <= sqrt(m * deviation * near) + m * near / 1.5:
                    continue
                bound = sqrt(m * deviation * wide) + m * wide / 1.5
                if abs(gap) > bound:
                    return self._cut(gap, bound)
                if self._counts(gap):
                    level = WARNING
                    self.statistic, self.threshold = abs(gap), bound
        return level

    def _ready(self) -> bool:
        """Whether enough is known of the stream to test it."""
        return True

    def _correlation(self) -> float:
        """How many readings count as one independent reading."""
        return 1.0

    def _counts(self, gap: float) -> bool:
        return self.mode == "both" or (gap > 0) == (self.mode == "up")

    def _cut(self, gap: float, bound: float) -> Level:
        self.reset()
        if not self._counts(gap):
            return NONE
        self.statistic, self.threshold = abs(gap), bound
        return DRIFT

    def consistent(self) -> bool:
        """Whether the buckets hold as many readings as the window says."""
        return sum(len(row) << i for i, row in enumerate(self.rows)) == self.n
