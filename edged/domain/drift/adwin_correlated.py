"""ADWIN for readings that resemble their neighbours: errors in bursts, slow confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edged.domain.drift.adwin import ADWIN
from edged.domain.drift.signals import LARGEST, NONE, Level, require

# A difference of neighbouring blocks counts for at most this many times the present estimate, so that
# the change to be found does not pass for noise.
MOST = 20.0
FADING = 0.02  # weight of the newest difference, once there are 50


@dataclass(slots=True)
class CorrelatedADWIN(ADWIN):
    """ADWIN whose parts count as many readings as they have independent ones.

    The paper's bound holds for independent readings. Errors of a model on a sensor stream come in
    bursts, and then a window test alarms all the time. Here the long-run variance V of the
    stream is estimated from the differences of neighbouring blocks' means, which neither a jump nor
    a slow trend spoils, and n readings count as n / tau, ::

        V = block / 2 * mean((b_{j+1} - b_j)²),   tau = max(1, V / σ²)

    On independent readings tau is near 1 and the test the paper's. With errors in bursts of 5 on the
    mean, ADWIN gives about 50 false alarms per 50,000 and this 0.1 (`benchmarks/drift.py`); bursts of
    50 are longer than the blocks can show, and it gives some.

    Parameters
    ----------
    block
        Readings a block: longer than bursts last.
    fewest_blocks
        No test before more than so many blocks; the estimate outlives the window.

    References
    ----------
    A. Bifet, R. Gavaldà, SDM 2007, for the window (see `ADWIN`). W. B. Wu, Z. Zhao: Inference of
    trends in time series. JRSS B 69 (2007), for the variance.
    """

    name: ClassVar[str] = "adwin_correlated"
    parameters: ClassVar[tuple[str, ...]] = (*ADWIN.parameters, "block", "fewest_blocks")

    block: int = 128
    fewest_blocks: int = 4
    block_n: int = 0
    block_sum: float = 0.0
    blocks: int = 0
    last_mean: float = 0.0
    half_square: float = 0.0  # mean of (b_{j+1} - b_j)² / 2

    def __post_init__(self) -> None:
        ADWIN.__post_init__(self)
        require(self.block >= 1 <= self.fewest_blocks, self.name, "block and fewest_blocks >= 1")

    def update(self, value: float) -> Level:
        """Take in one reading."""
        value = float(value)
        if not -LARGEST < value < LARGEST:  # NaN too
            return NONE
        self.block_n += 1
        self.block_sum += value
        if self.block_n == self.block:
            self._end_block()
        return ADWIN.update(self, value)

    def _end_block(self) -> None:
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

    def reset(self) -> None:
        """Forget the window; how much neighbours resemble each other is kept, as it lasts longer."""
        self.statistic = self.threshold = 0.0
        self.ticks, self.n, self.total, self.spread, self.rows = 0, 0, 0.0, 0.0, []
