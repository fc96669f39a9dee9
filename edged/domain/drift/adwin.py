"""ADWIN: a window that grows until two parts of it have different means, on readings that come in bursts."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, sqrt
from typing import ClassVar

from typing_extensions import Self

from edged.domain.drift.signals import DRIFT, NONE, WARNING, Level
from edged.domain.json_fields import Count, JsonObject, Number
from edged.domain.training.message import Message
from edged.errors import TrainingError

CLOCK = 32  # readings from one test to the next
MAX_BUCKETS = 5  # of a size: more give finer cuts and cost more
SHORTEST = 5  # readings of a part that is tested
GRACE = 10  # readings before the first test
WARNING_DELTA = 0.02  # confidence of the warning level, which the paper does not have
FEWEST_BLOCKS = 4  # blocks before the first test; what they show outlives the window
# Larger readings do not count, like NaN: their squares would end in infinity and stay there.
LARGEST = 1e100
# A difference of neighbouring blocks counts for at most this many times the present estimate, so that
# the change to be found does not pass for noise.
MOST = 20.0
FADING = 0.02  # weight of the newest difference, once there are 50


@dataclass
class ADWIN(Message):
    """Adaptive windowing (ADWIN2), on readings within 0 and 1; its fields are its state, JSON values.

    The window is held as an exponential histogram: row i has at most `MAX_BUCKETS` buckets, each the
    sum of 2^i neighbouring readings, so memory grows with the logarithm of the window. At every
    `CLOCK`-th reading each border of two buckets is tried as a cut into an older part of n0 and a
    newer one of n1 readings. With the variance σ² of the window and, L being `SHORTEST`, ::

        1/m = 1 / (n0 - L + 1) + 1 / (n1 - L + 1),   d = ln(2 ln(n) / delta)
        change: |mean0 - mean1| > sqrt(2 tau / m * σ² * d) + 2 tau / (3 m) * d

    (equation 3.1 of the paper, with the parts counted a little shorter). After a change the window
    starts again. `statistic` and `threshold` belong to the newest test at warning level or above; a drift has
    `statistic` > `threshold`.

    The paper's bound, with tau 1, holds for independent readings. Errors of a model on a sensor stream come
    in bursts, and then a window test alarms all the time. So the long-run variance V of the stream is
    estimated from the differences of neighbouring blocks' means, which neither a jump nor a slow trend
    spoils, and n readings count as n / tau, ::

        V = block / 2 * mean((b_{j+1} - b_j)²),   tau = max(1, V / σ²)

    On independent readings tau is near 1. With errors in bursts of 5 on the mean, the paper's test gives
    about 50 false alarms per 50,000 and this one 0.1; bursts of 50 are longer than the blocks can show, and
    it gives some. Decision 16 has the detectors that do worse.

    Source: A. Bifet, R. Gavaldà: Learning from time-changing data with adaptive windowing. SDM 2007.
    W. B. Wu, Z. Zhao: Inference of trends in time series. JRSS B 69 (2007), for the variance.

    >>> detector = ADWIN()
    >>> levels = [detector.update(x) for x in [0, 0, 0, 1] * 250 + [1, 0] * 250]
    >>> levels.index(Level.DRIFT)
    1119
    """

    name: ClassVar[str] = "adwin_correlated"

    delta: Number = 0.002  # the probability of a false alarm at one test is below it
    rises_only: bool = False  # a fall begins the window again without a signal
    block: Count = 128  # readings: longer than bursts last; 0: they are independent
    ticks: Count = 0
    n: Count = 0
    total: Number = 0.0
    spread: Number = 0.0  # sum of squared deviations from the mean
    rows: list[list[Number]] = field(default_factory=list)  # oldest bucket first
    statistic: Number = 0.0
    threshold: Number = 0.0
    block_n: Count = 0
    block_sum: Number = 0.0
    blocks: Count = 0
    last_mean: Number = 0.0
    half_square: Number = 0.0  # mean of (b_{j+1} - b_j)² / 2

    def update(self, value: float) -> Level:
        """Take in one reading; NaN and infinity neither count nor change anything (level NONE)."""
        value = float(value)
        if not -LARGEST < value < LARGEST:  # NaN too
            return NONE
        if self.block:
            self._extend_block(value)
        n = self.n
        if n:
            off = value - self.total / n
            self.spread += off * off * n / (n + 1)
        self.n = n + 1
        self.total += value
        self._insert(value)
        self.ticks += 1
        early = n < GRACE or (self.block and self.blocks <= FEWEST_BLOCKS)
        return NONE if self.ticks % CLOCK or early else self._test()

    def _extend_block(self, value: float) -> None:
        self.block_n += 1
        self.block_sum += value
        if self.block_n < self.block:
            return
        mean = self.block_sum / self.block
        half = (mean - self.last_mean) ** 2 / 2.0
        if self.blocks > FEWEST_BLOCKS:
            independent = self.spread / max(self.n, 1) / self.block
            half = min(half, MOST * max(self.half_square, independent))
        if self.blocks:
            self.half_square += (half - self.half_square) * max(FADING, 1.0 / self.blocks)
        self.blocks += 1
        self.last_mean, self.block_n, self.block_sum = mean, 0, 0.0

    def _insert(self, total: float) -> None:
        """Add the newest bucket; where a row overflows, its two oldest become one of the next row."""
        for row in self.rows:
            row.append(total)
            if len(row) <= MAX_BUCKETS:
                return
            total = row.pop(0) + row.pop(0)
        self.rows.append([total])

    def _test(self) -> Level:
        """Try all cuts, oldest first; the first beyond the drift threshold counts."""
        n, total = self.n, self.total
        wide = log(2.0 * log(n) / self.delta)
        near = log(2.0 * log(n) / WARNING_DELTA)
        deviation = 2.0 * self.spread / n
        stretch = self._correlation()
        level, n0, sum0 = NONE, 0, 0.0
        for i in range(len(self.rows) - 1, -1, -1):
            size = 1 << i
            for bucket in self.rows[i]:
                n0 += size
                sum0 += bucket
                n1 = n - n0
                if n1 < SHORTEST:
                    return level
                if n0 < SHORTEST:
                    continue
                gap = (total - sum0) / n1 - sum0 / n0
                m = stretch / (n0 - SHORTEST + 1) + stretch / (n1 - SHORTEST + 1)
                if abs(gap) <= sqrt(m * deviation * near) + m * near / 1.5:
                    continue
                bound = sqrt(m * deviation * wide) + m * wide / 1.5
                if abs(gap) > bound:
                    return self._cut(gap, bound)
                if self._counts(gap):
                    level = WARNING
                    self.statistic, self.threshold = abs(gap), bound
        return level

    def _correlation(self) -> float:
        """Return how many readings count as one independent reading."""
        variance = self.spread / self.n
        return max(1.0, self.block * self.half_square / variance) if self.block and variance > 0 else 1.0

    def _counts(self, gap: float) -> bool:
        return gap > 0 or not self.rises_only

    def _cut(self, gap: float, bound: float) -> Level:
        self.reset()
        if not self._counts(gap):
            return NONE
        self.statistic, self.threshold = abs(gap), bound
        return DRIFT

    def reset(self) -> None:
        """Forget the window; parameters stay, and how much neighbouring readings resemble each other."""
        self.statistic = self.threshold = 0.0
        self.ticks, self.n, self.total, self.spread, self.rows = 0, 0, 0.0, 0.0, []

    def to_json(self) -> JsonObject:
        """Return parameters and state as JSON values."""
        return {**super().to_json(), "rows": [list(row) for row in self.rows]}

    @classmethod
    def from_json(cls, values: object) -> Self:
        """Read the detector that gave `values`; it continues identically."""
        found = super().from_json(values)
        if sum(len(row) << i for i, row in enumerate(found.rows)) != found.n:
            raise TrainingError("the parts contradict each other", where="ADWIN.rows")
        return found
