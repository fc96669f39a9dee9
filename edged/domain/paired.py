"""Whether one of two models on the same stream is better, or whether it is chance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def block_bootstrap(
    difference: NDArray[np.float64], *, block: int = 100, rounds: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of the mean of `difference` `(n,)`, for errors that come in bursts.

    Whole blocks of consecutive rows are drawn, so that neighbours which err together stay together.
    Künsch, "The jackknife and the bootstrap for general stationary observations", Annals of Statistics 17
    (1989), in its form with blocks that do not overlap (Carlstein 1986).

    >>> low, high = block_bootstrap(np.ones(1000))
    >>> low == high == 1.0
    True
    """
    count = max(1, len(difference) // block)
    sums = np.array([part.sum() for part in np.array_split(difference, count)])
    lengths = np.array([len(part) for part in np.array_split(difference, count)])
    drawn = np.random.default_rng(seed).integers(0, count, (rounds, count))
    means = sums[drawn].sum(axis=1) / lengths[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
