"""Page-Hinkley: a cumulated deviation from the mean that leaves its extreme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edged.domain.drift.signals import DRIFT, LARGEST, NONE, WARNING, Level, StreamDetector, require


@dataclass(slots=True)
class PageHinkley(StreamDetector):
    """The Page-Hinkley test with a fading sum, on any real-valued stream.

    With the running mean m_t of all readings since the last drift::

        up_t   = alpha * up_{t-1}   + (x_t - m_t - delta);   test: up_t - min(up) > threshold
        down_t = alpha * down_{t-1} + (x_t - m_t + delta);   test: max(down) - down_t > threshold

    Parameters
    ----------
    min_instances
        No test before as many readings.
    delta
        Deviations up to this are tolerated, in units of the readings.
    threshold
        λ of the paper: how far the sum must leave its extreme, in units of the readings.
    alpha
        Fading factor of the sums.
    mode
        "up" and "down" watch for a rising or falling mean, "both" for either.
    warning_share
        A warning is given from this share of the threshold on. The literature has no warning level;
        half the way takes about half the delay.

    Notes
    -----
    The threshold is in units of the readings, so no value suits all streams. At the literature's
    defaults stationary 0/1 errors give up to 5 false alarms per 50,000 (see `benchmarks/drift.py`).

    References
    ----------
    E. S. Page: Continuous inspection schemes. Biometrika 41 (1954). D. V. Hinkley: Inference about
    the change-point from cumulative sum tests. Biometrika 58 (1971). Defaults and fading sum:
    R. Sebastião, J. M. Fernandes: Supporting the Page-Hinkley test with empirical mode decomposition
    for change detection. ISMIS 2017.

    Examples
    --------
    >>> detector = PageHinkley()
    >>> levels = [detector.update(x) for x in [0.0] * 100 + [5.0] * 20]
    >>> levels.index(Level.DRIFT)
    110
    """

    name: ClassVar[str] = "page_hinkley"
    parameters: ClassVar[tuple[str, ...]] = (
        "min_instances", "delta", "threshold", "alpha", "mode", "warning_share",
    )  # fmt: skip

    min_instances: int = 30
    delta: float = 0.005
    threshold: float = 50.0
    alpha: float = 0.9999
    mode: str = "both"
    warning_share: float = 0.5
    n: int = 0
    mean: float = 0.0
    up: float = 0.0
    down: float = 0.0
    up_min: float = 0.0
    down_max: float = 0.0
    statistic: float = 0.0

    def __post_init__(self) -> None:
        require(self.mode in ("up", "down", "both"), self.name, 'mode is "up", "down" or "both"')
        require(self.delta >= 0 < self.threshold, self.name, "delta >= 0 and threshold > 0")
        require(0 < self.alpha <= 1, self.name, "0 < alpha <= 1")
        require(0 < self.warning_share <= 1, self.name, "0 < warning_share <= 1")

    def update(self, value: float) -> Level:
        """Take in one reading of any scale."""
        value = float(value)
        if not -LARGEST < value < LARGEST:  # NaN too
            return NONE
        self.n = n = self.n + 1
        self.mean = mean = self.mean + (value - self.mean) / n
        off = value - mean
        self.up = up = self.alpha * self.up + off - self.delta
        self.down = down = self.alpha * self.down + off + self.delta
        self.up_min = min(up, self.up_min)
        self.down_max = max(down, self.down_max)
        return NONE if n < self.min_instances else self._test(up - self.up_min, self.down_max - down)

    def _test(self, risen: float, fallen: float) -> Level:
        far = max(0.0 if self.mode == "down" else risen, 0.0 if self.mode == "up" else fallen)
        if far <= self.threshold * self.warning_share:
            return NONE
        if far <= self.threshold:
            self.statistic = far
            return WARNING
        self.reset()
        self.statistic = far
        return DRIFT
