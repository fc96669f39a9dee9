"""Seeded random numbers for the draws of the daemon, and the samples that are kept for judging.

`numpy.random` alone would cost the daemon 7 MB.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEP = np.uint64(0x9E3779B97F4A7C15)


def splitmix(states: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The output function of SplitMix64: numbers in [0, 1) for states `(n,)` that are multiples of `STEP`."""
    with np.errstate(over="ignore"):
        z = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    # The upper 53 bits are a float64 in [0, 1) without rounding.
    uniform: NDArray[np.float64] = (z >> np.uint64(11)) * 2.0**-53
    return uniform


class SeededRng:
    """A stream of uniform numbers, the same for the same `seed` on every machine and release.

    Source: G. L. Steele, D. Lea, C. H. Flood: Fast splittable pseudorandom number generators. OOPSLA (2014);
    the generator with 64 bits of state, whose n-th number depends on n alone.

    >>> SeededRng(7).uniform(3).round(4).tolist() == SeededRng(7).uniform(3).round(4).tolist()
    True
    >>> int(SeededRng(7).integers(6, 1000).max())
    5
    """

    def __init__(self, seed: int) -> None:
        self._at = np.uint64(seed & 0xFFFFFFFFFFFFFFFF)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """The next `count` numbers, `(count,)` in [0, 1)."""
        with np.errstate(over="ignore"):
            z = self._at + np.arange(1, count + 1, dtype=np.uint64) * STEP
            self._at = z[-1] if count else self._at
        return splitmix(z)

    def integers(self, below: int, count: int) -> NDArray[np.int64]:
        """The next `count` whole numbers, `(count,)` from 0 to `below` - 1."""
        return (self.uniform(count) * below).astype(np.int64)


def is_holdout(offsets: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Whether each sample belongs to the holdout, `(n,)` bool, from its offset alone, `(n,)` int64.

    The offset is hashed (see `splitmix`), so neither a period in the stream nor a restart favours one
    side, and the answer for an offset and a share stays the same for ever. A larger share keeps every sample
    of a smaller one.

    >>> is_holdout(np.arange(12), 0.25).astype(int).tolist()
    [0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0]
    """
    places = np.asarray(offsets, np.int64).reshape(-1).astype(np.uint64) + np.uint64(1)
    return np.asarray(splitmix(places * STEP) < share)
