"""Weights as 8-bit integers with a scale for each output of a layer.

Symmetric: 0 stays 0, so that no correction for a zero point is needed, and what a layer answers is off by at
most half a step of its own scale (Jacob et al. 2018, "Quantization and training of neural networks for
efficient integer-arithmetic-only inference").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LARGEST = 127
# A smaller step could not be divided by.
TINY = np.finfo(np.float32).tiny


def quantise(values: NDArray[np.float32], axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Integers of the same shape as `values`, and the scale `(k,)` of each slice along `axis`.

    >>> quantise(np.array([[1.0, -2.0], [0.0, 0.0]], np.float32), axis=0)[0].tolist()
    [[64, -127], [0, 0]]
    """
    others = tuple(i for i in range(values.ndim) if i != axis)
    largest = np.abs(values).max(axis=others, keepdims=True)
    scale = np.maximum(largest / np.float32(LARGEST), TINY)
    whole = np.clip(np.rint(values / scale), -LARGEST, LARGEST)
    return whole.astype(np.int8), scale.reshape(-1)
