"""Histograms of durations, for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

PREDICTION = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
TRAINING = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


class Histogram:
    """Counts of values up to each bound, and their sum; one thread writes, any thread reads.

    >>> histogram = Histogram((0.1, 1.0)); histogram.add(0.05); histogram.add_many(np.array([0.5, 7.0]))
    >>> histogram.cumulative(), histogram.count, histogram.total
    ([1, 2, 3], 3, 7.55)
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._edges = np.asarray(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value in its bucket."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_many(self, values: NDArray[np.float64]) -> None:
        """Count values `(n,)` in their buckets."""
        for place, more in enumerate(np.bincount(np.searchsorted(self._edges, values)).tolist()):
            self._counts[place] += more
        self.total += float(values.sum())

    @property
    def count(self) -> int:
        """Number of values counted so far."""
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """Return the number of values up to each bound, and of all values."""
        return list(accumulate(self._counts))


class ModelHistograms:
    """One histogram for each version of the model."""

    def __init__(self) -> None:
        self.by_version: dict[int, Histogram] = {}

    def add(self, version: int, seconds: float) -> None:
        """Count the duration of one answer, in seconds, for a version."""
        found = self.by_version.get(version)
        if found is None:
            found = self.by_version[version] = Histogram(PREDICTION)
        found.add(seconds)

    def keep_only(self, versions: Collection[int]) -> None:
        """Drop the histograms of all other versions."""
        for version in set(self.by_version) - set(versions):
            del self.by_version[version]
