"""Which samples are kept for judging and never trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def is_holdout(offsets: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Whether each sample belongs to the holdout, from its offset alone.

    The offset is hashed, so neither a period in the stream nor a restart favours one side, and the
    answer for an offset and a share stays the same for ever. A larger share keeps every sample of
    a smaller one.

    Parameters
    ----------
    offsets
        Offsets of the samples, `(n,)` int64.
    share
        Part of all samples to hold out, 0 to 1.

    Returns
    -------
    `(n,)` bool.

    Notes
    -----
    The hash is the output function of SplitMix64 (Steele, Lea, Flood: "Fast splittable
    pseudorandom number generators", OOPSLA 2014).

    Examples
    --------
    >>> is_holdout(np.arange(12), 0.25).astype(int).tolist()
    [0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 0, 0]
    """
    z = np.asarray(offsets, np.int64).reshape(-1).astype(np.uint64) + np.uint64(1)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    # The upper 53 bits are a float64 in [0, 1) without rounding.
    return np.asarray((z >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share)
