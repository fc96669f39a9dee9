"""Arrays of zeros that take memory only where something was written."""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

PAGES = 4 * mmap.PAGESIZE  # below it, whole pages of its own would cost more than they save


def lazy_zeros(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros of `shape`, in pages of their own that are empty until they are written to.

    `numpy.zeros` promises no such thing: memory that was used before is filled with zeros, and counts.

    >>> ring = lazy_zeros((2, 3), np.float32); ring[1, 2] = 7
    >>> ring.tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 7.0]]
    """
    kind = np.dtype(dtype)
    count = math.prod(shape) if isinstance(shape, tuple) else shape
    size = count * kind.itemsize
    if size < PAGES:
        return np.zeros(shape, kind)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, kind, count).reshape(shape)
