"""Two samples of one feature: whether their distributions differ, and by how much."""

from __future__ import annotations

from math import exp, sqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edged.domain.arrays import quantiles

Sorted = NDArray[np.floating]


DIFFERENT = 0.01  # significance at which samples of several features differ
BINS = 10
FEWEST = 20  # rows of either, below which nothing is known


def any_differs(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Return whether any feature of samples `(n, d)` and `(m, d)` has another distribution.

    Two-sample Kolmogorov-Smirnov test of each feature with Holm's correction. With fewer than `FEWEST` rows
    the answer is no.
    """
    if min(len(a), len(b)) < FEWEST:
        return False
    a, b = np.sort(a, axis=0), np.sort(b, axis=0)
    p = [ks_p_value(ks_distance(a[:, i], b[:, i]), len(a), len(b)) for i in range(a.shape[1])]
    return bool(holm(np.array(p)).min() < DIFFERENT)


def ks_distance(a: Sorted, b: Sorted) -> float:
    """Kolmogorov-Smirnov distance of two sorted samples `(n,)` and `(m,)`: max |F_a - F_b|.

    Ties are counted on both sides of a jump, so features of few values are right too.

    >>> ks_distance(np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0]))
    0.33333333333333337
    """
    if len(a) < len(b):
        a, b = b, a
    # Between two jumps of F_b, F_a only rises: the largest gaps are just before and at those jumps.
    gap = 0.0
    sides: tuple[Literal["left"], Literal["right"]] = ("left", "right")
    for side in sides:
        below = a.searchsorted(b, side) / len(a) - b.searchsorted(b, side) / len(b)
        gap = max(gap, float(np.abs(below).max()))
    return gap


def ks_p_value(distance: float, n: float, m: float) -> float:
    """Probability of at least this distance between samples of (effective) sizes n and m.

    Kolmogorov's series Q(z) = 2 Σ (-1)^(k-1) exp(-2 k² z²) at Stephens' z, which is good from small
    samples on: z = (√e + 0.12 + 0.11 / √e) distance, e = n m / (n + m).

    Source: M. A. Stephens, JRSS B 32 (1970).
    """
    root = sqrt(n * m / (n + m))
    z = (root + 0.12 + 0.11 / root) * distance
    if z < 0.2:  # Q is 1 to twelve digits, and the series slow
        return 1.0
    total, sign = 0.0, 2.0
    for k in range(1, 60):
        term = exp(-2.0 * (k * z) ** 2)
        total += sign * term
        if term < 1e-16:
            break
        sign = -sign
    return min(1.0, max(0.0, total))


class Cells:
    """The population stability index of a reference sample, ready for many comparisons.

    The cells are the reference's `BINS` quantile ranges; each quantile itself is a cell of its own,
    so a constant or two-valued feature is compared value by value. Half a count is added to every
    cell that is not empty in both, so that an empty one gives a finite index::

        PSI = Σ (q - p) ln(q / p)

    Usual reading: below 0.1 no change, 0.1 to 0.25 some, above 0.25 much. Source: N. Siddiqi:
    Credit risk scorecards (2006); B. Yurdakul, J. Naranjo: Statistical properties of the population
    stability index. Journal of Risk Model Validation 14 (2020).
    """

    def __init__(self, reference: Sorted) -> None:
        edges = quantiles(reference, (np.arange(1, BINS) / BINS).tolist())
        # What np.unique would give, which imports numpy.ma: 1 MB.
        self._edges = edges[np.append(True, edges[1:] > edges[:-1])]
        self._counts = self._count(reference)

    def psi(self, recent: Sorted) -> float:
        """The index of a sorted sample `(m,)` against the reference."""
        counts = self._count(recent)
        used = (self._counts > 0) | (counts > 0)
        p, q = self._counts[used] + 0.5, counts[used] + 0.5
        p, q = p / p.sum(), q / q.sum()
        return float(((q - p) * np.log(q / p)).sum())

    def _count(self, sample: Sorted) -> NDArray[np.int64]:
        sides = [sample.searchsorted(self._edges, "left"), sample.searchsorted(self._edges, "right")]
        return np.diff(np.stack(sides, axis=1).ravel(), prepend=0, append=len(sample))


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """P-values `(d,)` corrected for being `d` of them; the family-wise error stays below alpha.

    Source: S. Holm: A simple sequentially rejective multiple test procedure. Scandinavian Journal
    of Statistics 6 (1979).

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    steps = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values), np.float64)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p_values[order] * steps))
    return corrected


def correlation_time(values: NDArray[np.floating]) -> float:
    """By how much the effective size of a time-ordered sample `(n,)` is smaller than n; at least 1.

    Readings of a sensor follow each other closely, so n of them say less than n independent ones; a
    test that does not know it takes every slow wave for a drift. By batch means of the ranks,
    length * variance(batch means) / variance(all): the larger of those with √n and with n^(2/3)
    readings a batch, the first being the more precise, the second seeing further.

    Source: B. Schmeiser: Batch size effects in the analysis of simulation output. Operations
    Research 30 (1982).
    """
    ordered = np.sort(values)
    ranks = ordered.searchsorted(values, "left") + ordered.searchsorted(values, "right")
    spread = float(ranks.var())
    if spread == 0.0:
        return 1.0
    lengths = [int(len(values) ** power) for power in (1 / 2, 2 / 3)]
    return max(1.0, *(length * _variance_of_means(ranks, length) / spread for length in lengths))


def _variance_of_means(values: NDArray[np.floating | np.integer], length: int) -> float:
    batches = len(values) // length
    if batches < 5:
        return 0.0
    return float(values[: batches * length].reshape(batches, length).mean(axis=1).var(ddof=1))
