"""ADWIN: a window that grows until two parts of it have different means; also for readings in bursts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite, log, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from edged.domain.drift.signals import DRIFT, NONE, WARNING, Level, require, unreadable
from edged.domain.json_fields import JsonObject

if TYPE_CHECKING:
    from typing_extensions import Self


# Larger readings do not count, like NaN: their squares would end in infinity and stay there.
LARGEST = 1e100
# A difference of neighbouring blocks counts for at most this many times the present estimate, so that
# the change to be found does not pass for noise.
MOST = 20.0
FADING = 0.02  # weight of the newest difference, once there are 50

WARNING_DELTA = 0.02  # confidence of the warning level: that of a drift cannot be larger


@dataclass(slots=True)
class ADWIN:
    """Adaptive windowing (ADWIN2), on readings within 0 and 1; its fields are its state, JSON values.

    The window is held as an exponential histogram: row i has at most `max_buckets` buckets, each the
    sum of 2^i neighbouring readings, so memory grows with the logarithm of the window. At every
    `clock`-th reading each border of two buckets is tried as a cut into an older part of n0 and a
    newer one of n1 readings. With the variance σ² of the window and, L being `min_window_length`, ::

        1/m = 1 / (n0 - L + 1) + 1 / (n1 - L + 1),   d = ln(2 ln(n) / delta)
        change: |mean0 - mean1| > sqrt(2 / m * σ² * d) + 2 / (3 m) * d

    (equation 3.1 of the paper, with the parts counted a little shorter). After a change the window
    starts anew. `statistic` and `threshold` belong to the newest test at warning level or above; a drift has
    `statistic` > `threshold`.

    Source: A. Bifet, R. Gavaldà: Learning from time-changing data with adaptive windowing. SDM 2007.

    >>> detector = ADWIN()
    >>> levels = [detector.update(x) for x in [0, 0, 0, 1] * 250 + [1, 0] * 250]
    >>> levels.index(Level.DRIFT)
    1119
    """

    name: ClassVar[str] = "adwin"

    delta: float = 0.002  # the probability of a false alarm at one test is below it
    clock: int = 32  # readings from one test to the next
    max_buckets: int = 5  # of a size: more give finer cuts and cost more
    min_window_length: int = 5  # the shortest part that is tested
    grace_period: int = 10  # no test before more than so many readings
    mode: str = "both"  # which changes are drifts; "up" or "down": others begin the window anew in silence
    warning_delta: float = WARNING_DELTA  # of the warning level, which the paper does not have
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

    def reset(self) -> None:
        """Forget the window; parameters stay, and how much neighbouring readings resemble each other."""
        self.statistic = self.threshold = 0.0
        self.ticks, self.n, self.total, self.spread, self.rows = 0, 0, 0.0, 0.0, []

    def state(self) -> JsonObject:
        """Parameters and state as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"detector": self.name} | values | {"rows": [list(row) for row in self.rows]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """The detector that gave `state`; it continues identically.

        Raises CorruptError when a field is missing or is not what this detector writes.
        """
        fresh = cls()
        for part in fields(cls):
            if not _fits(state.get(part.name), getattr(fresh, part.name)):
                raise unreadable(cls.name, f"field {part.name!r} is missing or wrong")
        rows = [list(row) for row in state["rows"]]
        if sum(len(row) << i for i, row in enumerate(rows)) != state["n"]:
            raise unreadable(cls.name, "its parts contradict each other")
        return cls(**{field.name: state[field.name] for field in fields(cls)} | {"rows": rows})


@dataclass(slots=True)
class CorrelatedADWIN(ADWIN):
    """ADWIN whose parts count as many readings as they have independent ones.

    The paper's bound holds for independent readings. Errors of a model on a sensor stream come in
    bursts, and then a window test alarms all the time. Here the long-run variance V of the
    stream is estimated from the differences of neighbouring blocks' means, which neither a jump nor
    a slow trend spoils, and n readings count as n / tau, ::

        V = block / 2 * mean((b_{j+1} - b_j)²),   tau = max(1, V / σ²)

    On independent readings tau is near 1 and the test the paper's. With errors in bursts of 5 on the
    mean, ADWIN gives about 50 false alarms per 50,000 and this 0.1; bursts of
    50 are longer than the blocks can show, and it gives some.

    Source: A. Bifet, R. Gavaldà, SDM 2007, for the window (see `ADWIN`). W. B. Wu, Z. Zhao: Inference of
    trends in time series. JRSS B 69 (2007), for the variance.
    """

    name: ClassVar[str] = "adwin_correlated"

    block: int = 128  # readings: longer than bursts last
    fewest_blocks: int = 4  # no test before more than so many; the estimate outlives the window
    block_n: int = 0
    block_sum: float = 0.0
    blocks: int = 0
    last_mean: float = 0.0
    half_square: float = 0.0  # mean of (b_{j+1} - b_j)² / 2

    def __post_init__(self) -> None:
        ADWIN.__post_init__(self)  # `super()` does not know a class with slots
        require(self.block >= 1 <= self.fewest_blocks, self.name, "block and fewest_blocks >= 1")

    def update(self, value: float) -> Level:
        """Add one value, and return whether the mean has changed."""
        value = float(value)
        if not -LARGEST < value < LARGEST:  # NaN too
            return NONE
        self.block_n += 1
        self.block_sum += value
        if self.block_n == self.block:
            self._finish_block()
        return ADWIN.update(self, value)

    def _finish_block(self) -> None:
        mean = self.block_sum / self.block
        half = (mean - self.last_mean) ** 2 / 2.0
        if self.blocks > self.fewest_blocks:
            independent = self.spread / max(self.n, 1) / self.block
            half = min(half, MOST * max(self.half_square, independent))
        if self.blocks:
            self.half_square += (half - self.half_square) * max(FADING, 1.0 / self.blocks)
        self.blocks += 1
        self.last_mean, self.block_n, self.block_sum = mean, 0, 0.0

    def _ready(self) -> bool:
        return self.blocks > self.fewest_blocks

    def _correlation(self) -> float:
        variance = self.spread / self.n
        return max(1.0, self.block * self.half_square / variance) if variance > 0 else 1.0


def _fits(value: Any, like: Any) -> bool:
    """Whether a value of a state has the type of a fresh detector's; numbers are finite."""
    if isinstance(like, list):
        return isinstance(value, list) and all(
            isinstance(row, list) and all(_fits(total, 0.0) for total in row) for row in value
        )
    if isinstance(like, float):
        return type(value) in (int, float) and isfinite(value)
    return type(value) is type(like)
