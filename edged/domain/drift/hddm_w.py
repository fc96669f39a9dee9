"""HDDM-W: weighted means before and after the best cut, compared by McDiarmid's bound."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import ClassVar

from edged.domain.drift.signals import DRIFT, NONE, WARNING, Level, StreamDetector, require


@dataclass(slots=True)
class HDDMW(StreamDetector):
    """Hoeffding-bound drift detection with an exponentially weighted mean (the W-test).

    Three weighted means are kept, of all readings, of those up to the cut, and of those after it;
    the cut is where mean + bound was least (for a rising mean). Each has a weight
    v <- lambda² + (1 - lambda)² v, and ::

        drift: mean(after) - mean(before) > sqrt((v_before + v_after) ln(1 / confidence) / 2)

    Parameters
    ----------
    drift_confidence, warning_confidence
        Probability of a false alarm of one comparison, for drift and for warning.
    lambda_val
        Weight of the newest reading in the mean.
    two_sided_test
        Watch for a falling mean too.

    Notes
    -----
    The comparison is made at every reading, so false alarms add up: at the literature's defaults
    stationary errors of 20 % and 50 % give about 5 and 40 per 50,000 (`benchmarks/drift.py`);
    `quiet_detector` has the confidence that keeps to one.

    References
    ----------
    I. Frías-Blanco, J. del Campo-Ávila, G. Ramos-Jiménez, R. Morales-Bueno, A. Ortiz-Díaz,
    Y. Caballero-Mota: Online and non-parametric drift detection methods based on Hoeffding's bounds.
    IEEE TKDE 27 (2015).

    Examples
    --------
    >>> detector = HDDMW()
    >>> levels = [detector.update(x) for x in [0] * 100 + [1] * 20]
    >>> levels.index(Level.WARNING), levels.index(Level.DRIFT)
    (110, 113)
    """

    name: ClassVar[str] = "hddm_w"
    parameters: ClassVar[tuple[str, ...]] = (
        "drift_confidence", "warning_confidence", "lambda_val", "two_sided_test",
    )  # fmt: skip

    drift_confidence: float = 0.001
    warning_confidence: float = 0.005
    lambda_val: float = 0.05
    two_sided_test: bool = False
    n: int = 0
    mean: float = 0.0
    weight: float = 1.0
    # Before and after the cut for a rising mean, then for a falling one; `_n` says whether any came after.
    low: float = 0.0
    low_weight: float = 1.0
    low_bound: float = 0.0
    rising: float = 0.0
    rising_weight: float = 1.0
    rising_n: int = 0
    high: float = 0.0
    high_weight: float = 1.0
    high_bound: float = 0.0
    falling: float = 0.0
    falling_weight: float = 1.0
    falling_n: int = 0
    statistic: float = 0.0
    threshold: float = 0.0

    def __post_init__(self) -> None:
        require(
            0 < self.drift_confidence <= self.warning_confidence < 1,
            self.name,
            "0 < drift_confidence <= warning_confidence < 1",
        )
        require(0 < self.lambda_val <= 1, self.name, "0 < lambda_val <= 1")

    def update(self, value: float) -> Level:
        """Take in one error within 0 and 1; other values do not count."""
        value = float(value)
        if not 0.0 <= value <= 1.0:  # NaN too
            return NONE
        mean, weight = self._moved(self.n, self.mean, self.weight, value)
        self.mean, self.weight = mean, weight
        self.n += 1
        bound = sqrt(weight * log(1.0 / self.drift_confidence) / 2.0)
        level = self._rise(value, mean, weight, bound)
        if self.two_sided_test and level is not DRIFT:
            level = max(level, self._fall(value, mean, weight, bound))
        if level is DRIFT:
            self._restart()
        return level

    def _rise(self, value: float, mean: float, weight: float, bound: float) -> Level:
        if self.n == 1 or mean + bound < self.low_bound:
            self.low, self.low_weight, self.low_bound = mean, weight, mean + bound
            self.rising_weight, self.rising_n = 1.0, 0
            return NONE
        self.rising, self.rising_weight = self._moved(self.rising_n, self.rising, self.rising_weight, value)
        self.rising_n += 1
        return self._test(self.rising - self.low, self.low_weight + self.rising_weight)

    def _fall(self, value: float, mean: float, weight: float, bound: float) -> Level:
        if self.n == 1 or mean - bound > self.high_bound:
            self.high, self.high_weight, self.high_bound = mean, weight, mean - bound
            self.falling_weight, self.falling_n = 1.0, 0
            return NONE
        self.falling, self.falling_weight = self._moved(
            self.falling_n, self.falling, self.falling_weight, value
        )
        self.falling_n += 1
        return self._test(self.high - self.falling, self.high_weight + self.falling_weight)

    def _moved(self, n: int, mean: float, weight: float, value: float) -> tuple[float, float]:
        """Mean of n readings and its weight, with one more reading."""
        share = self.lambda_val
        keep = 1.0 - share
        return share * value + keep * mean if n else value, share * share + keep * keep * weight

    def _test(self, gap: float, weight: float) -> Level:
        if gap <= sqrt(weight * log(1.0 / self.warning_confidence) / 2.0):
            return NONE
        bound = sqrt(weight * log(1.0 / self.drift_confidence) / 2.0)
        self.statistic, self.threshold = gap, bound
        return DRIFT if gap > bound else WARNING

    def _restart(self) -> None:
        statistic, threshold = self.statistic, self.threshold
        self.reset()
        self.statistic, self.threshold = statistic, threshold
