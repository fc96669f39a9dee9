"""Weights from elsewhere and a device's own: how much of each serves it best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the weights from elsewhere that are tried."""


def mixed(
    own: Mapping[str, NDArray[np.float32]], other: Mapping[str, NDArray[np.float32]], share: float
) -> dict[str, NDArray[np.float32]]:
    """The weights on the line between the two; at 0 and 1 exactly the one or the other.

    Interpolated weights of one network that were trained apart from a common start do well in between
    (Wortsman et al., "Model soups", 2022).
    """
    if share in (0.0, 1.0):
        return {name: (other if share else own)[name].copy() for name in own}
    return {
        name: np.asarray(value + np.float32(share) * (other[name] - value), np.float32)
        for name, value in own.items()
    }


def best_share(losses: Mapping[float, float]) -> float | None:
    """The share with the smallest loss, of equal ones the larger; None where no loss is finite.

    >>> best_share({0.0: 0.5, 0.5: 0.4, 1.0: 0.4})
    1.0
    >>> best_share({0.0: math.nan, 1.0: math.inf}) is None
    True
    """
    finite = {share: loss for share, loss in losses.items() if math.isfinite(loss)}
    return min(finite, key=lambda share: (finite[share], -share), default=None)
