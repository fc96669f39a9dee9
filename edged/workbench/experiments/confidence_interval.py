"""Confidence intervals of a mean from few values."""

from __future__ import annotations

from math import atan, cos, isfinite, nan, pi, sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

HALVINGS = 100


class Interval(NamedTuple):
    """A mean and the ends of its interval; NaN with a single value, and all where one is not finite."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean of independent values, n > 0, with Student's t-interval (Student 1908).

    >>> interval = mean_interval([0.80, 0.82, 0.84])
    >>> [round(value, 4) for value in interval]
    [0.82, 0.7703, 0.8697]
    """
    if not all(map(isfinite, values)):
        return Interval(nan, nan, nan)
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, nan, nan)
    reach = t_quantile(0.5 + level / 2, len(values) - 1) * stdev(values) / sqrt(len(values))
    return Interval(mean, mean - reach, mean + reach)


def t_quantile(share: float, freedom: int) -> float:
    """The value below which a `share` of at least one half of Student's t-distribution lies.

    >>> round(t_quantile(0.975, 2), 3)
    4.303
    """
    low, high = 0.0, 1.0
    while _below(high, freedom) < share:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _below(middle, freedom) < share:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _below(t: float, freedom: int) -> float:
    """The share of the t-distribution below `t` (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(freedom))
    square = cos(angle) ** 2
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= square * (k - 1) / k
        total += term
    sine = t / sqrt(freedom + t * t)
    within = (angle + sine * total) * 2 / pi if odd else sine * total
    return 0.5 + within / 2
