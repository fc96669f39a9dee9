"""How much of a training batch one key may fill, so that one sensor cannot teach a model alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def capped(codes: NDArray[np.int64], share: float) -> NDArray[np.float64] | None:
    """With which probability each row is drawn, so that no key is expected to fill more than `share`.

    What the largest keys give up goes to the others in proportion. With so few keys that the cap could
    hold for all of them only by making them equal, or not at all, there is none.

    Parameters
    ----------
    codes
        Whose rows these are, `(n,)`: equal numbers for equal keys.
    share
        Largest share of one key, 0 to 1.

    Returns
    -------
    `(n,)`, of sum 1; None where drawing them all alike keeps to it, or there are too few keys.

    Examples
    --------
    >>> capped(np.array([0, 0, 0, 0, 0, 0, 1, 2]), 0.5).round(3).tolist()
    [0.083, 0.083, 0.083, 0.083, 0.083, 0.083, 0.25, 0.25]
    """
    _, place, counts = np.unique(codes, return_inverse=True, return_counts=True)
    part = counts / max(len(codes), 1)
    if len(counts) * share <= 1.0 or part.max() <= share:
        return None
    full = np.zeros(len(counts), bool)
    while (part[~full] > share + 1e-12).any():
        full |= part > share
        part[full] = share
        rest = part[~full]
        part[~full] = rest * (1.0 - share * full.sum()) / rest.sum()
    return np.asarray((part / counts)[place], np.float64)
