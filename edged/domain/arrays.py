"""Types of arrays by their numbers; quantiles as those of numpy, which imports `numpy.ma` for them: 1 MB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]


def quantiles(values: NDArray[np.floating | np.integer], shares: Sequence[float]) -> NDArray[np.float64]:
    """The quantiles of `(n, ...)` along the first axis, `(len(shares), ...)` float64; n > 0.

    Between two values the quantile is interpolated linearly: definition 7 of R. J. Hyndman, Y. Fan: Sample
    quantiles in statistical packages. The American Statistician 50 (1996). NaN where any value is NaN.

    >>> quantiles(np.array([3.0, 1.0, 2.0]), [0.0, 0.25, 0.5]).tolist()
    [1.0, 1.5, 2.0]
    """
    last = len(values) - 1
    place = np.array(shares, np.float64) * last
    below = np.floor(place).astype(np.intp)
    above = np.minimum(below + 1, last)
    ordered = np.partition(values, [*below.tolist(), *above.tolist(), last], axis=0)
    low, high = ordered[below], ordered[above]
    part = (place - below).reshape(-1, *[1] * (values.ndim - 1))
    found = np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1.0 - part))
    return np.where(np.isnan(ordered[last]), np.nan, found)
