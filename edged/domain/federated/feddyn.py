"""Dynamic regularisation: devices whose data differ agree on what one training on all data would give.

Acar et al., "Federated learning based on dynamic regularization" (2021). A device that trains many steps by
itself drifts towards the optimum of its own data, and the mean of such optima is not the optimum of all. So
each device remembers how far its updates have moved it so far, and is held to a point that lies as far on
the other side of the base; the coordinator remembers the mean of all updates, and adds it to the next
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Weights = Mapping[str, NDArray[np.float32]]


def pulled(base: Weights, moved: Weights, dynamic: float, proximal: float) -> tuple[Weights, float]:
    """Where a device's weights are pulled to, and how strongly: two penalties as one.

    `dynamic` and `proximal`, not both 0, are the weights of the squared distances to `base - moved` and to
    `base`, with which the round begins. `moved` is the sum of the device's updates so far: what is missing in
    it, or has another shape, counts as 0.
    """
    strength = dynamic + proximal
    share = np.float32(dynamic / strength)
    kept = fitting(moved, base)
    return {n: value - share * kept[n] if n in kept else value for n, value in base.items()}, strength


def fitting(moved: Weights, like: Weights) -> dict[str, NDArray[np.float32]]:
    """Of what a device remembers, that which is still of this network."""
    return {n: moved[n] for n, value in like.items() if n in moved and moved[n].shape == value.shape}


def moved_on(moved: Weights, update: Weights, like: Weights) -> dict[str, NDArray[np.float32]]:
    """The sum of updates with one more; parameters that an update leaves out have not moved."""
    kept = fitting(moved, like)
    zero = np.float32(0)
    return {n: kept.get(n, zero) + update.get(n, zero) + np.zeros_like(like[n]) for n in like}
