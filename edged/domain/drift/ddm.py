"""DDM: the error rate leaves its minimum by several standard deviations."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from edged.domain.drift.signals import DRIFT, NONE, WARNING, Level, StreamDetector, require


@dataclass(slots=True)
class DDM(StreamDetector):
    """Drift Detection Method, on a stream of errors 0 (right) and 1 (wrong).

    With the error rate p since the last drift, its standard deviation s = sqrt(p (1 - p) / n), and
    both at the moment where p + s was least::

        warning: p + s > p_min + warning_threshold * s_min
        drift:   p + s > p_min + drift_threshold * s_min

    Parameters
    ----------
    warm_start
        No test on the first so many readings.
    warning_threshold, drift_threshold
        Standard deviations of the minimum.

    Notes
    -----
    Where the warm start ends without any error, s_min is 0 and the first error is a drift: at an
    error rate of 1 % the literature's defaults give 9 false alarms per 50,000 (`benchmarks/drift.py`).
    A longer warm start ends that; see `quiet_detector`.

    References
    ----------
    J. Gama, P. Medas, G. Castillo, P. Rodrigues: Learning with drift detection. SBIA 2004.

    Examples
    --------
    >>> detector = DDM()
    >>> levels = [detector.update(x) for x in [0, 0, 0, 1] * 100 + [1, 0] * 100]
    >>> levels.index(Level.WARNING), levels.index(Level.DRIFT)
    (432, 478)
    """

    name: ClassVar[str] = "ddm"
    parameters: ClassVar[tuple[str, ...]] = ("warm_start", "warning_threshold", "drift_threshold")

    warm_start: int = 30
    warning_threshold: float = 2.0
    drift_threshold: float = 3.0
    n: int = 0
    p: float = 0.0
    p_min: float = 2.0  # above every p + s: the first test sets the minimum
    s_min: float = 0.0
    statistic: float = 0.0
    threshold: float = 0.0

    def __post_init__(self) -> None:
        require(
            0 < self.warning_threshold <= self.drift_threshold,
            self.name,
            "0 < warning_threshold <= drift_threshold",
        )

    def update(self, value: float) -> Level:
        """Take in one error within 0 and 1; other values do not count."""
        value = float(value)
        if not 0.0 <= value <= 1.0:  # NaN too
            return NONE
        self.n = n = self.n + 1
        self.p = p = self.p + (value - self.p) / n
        if n <= self.warm_start:
            return NONE
        # Rounding may carry the mean of ones a hair above 1.
        s = sqrt(p * (1.0 - p) / n) if p < 1.0 else 0.0
        if p + s <= self.p_min + self.s_min:
            self.p_min, self.s_min = p, s
        return self._test(p + s)

    def _test(self, reached: float) -> Level:
        if reached <= self.p_min + self.warning_threshold * self.s_min:
            return NONE
        limit = self.p_min + self.drift_threshold * self.s_min
        level = DRIFT if reached > limit else WARNING
        if level is DRIFT:
            self.reset()
        self.statistic, self.threshold = reached, limit
        return level
