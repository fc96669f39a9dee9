"""Statistics of each parameter over all devices, which a share of bad ones cannot move far.

Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (2018). Devices are not
weighed by their samples, which a bad one would state too high.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from edged.domain.federated.reduce import Aggregate
from edged.errors import NoDataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edged.domain.deltas import Floats
    from edged.domain.federated.layout import Doubles, Layout
    from edged.domain.federated.reduce import Contribution

    Room = Callable[[tuple[int, int], Any], NDArray[Any]]

COLUMNS = 256


class Matrix:
    """All updates, one row a device; a statistic of each column is the result.

    Parameters
    ----------
    statistic
        Makes `(columns,)` of `(columns, devices)` float32, each row in ascending order.
    room
        Gives a matrix of a shape and type, from where there is room for it.
    dtype
        `int8` is exact for updates that come as int8, and rounds others to that; `float32` is exact for all.
    """

    def __init__(
        self,
        statistic: Callable[[Floats], Doubles],
        room: Room = np.empty,
        dtype: Literal["int8", "float32"] = "int8",
    ) -> None:
        self._statistic = statistic
        self._room = room
        self._rounded = dtype == "int8"

    def begin(self, layout: Layout, expected: int) -> None:
        """Have room for `expected` updates."""
        self._layout = layout
        self._values = self._room((expected, layout.size), np.int8 if self._rounded else np.float32)
        self._scales = np.zeros((expected, layout.rows if self._rounded else 0), np.float32)
        self._devices = self._samples = 0

    def add(self, contribution: Contribution) -> None:
        """Lay it into the next row."""
        at, factor = self._devices, np.float32(contribution.factor)
        if self._rounded:
            values, scales = self._layout.integers(contribution.row)
            self._values[at], self._scales[at] = values, scales * factor
        else:
            self._values[at] = self._layout.change(contribution.row) * factor
        self._devices += 1
        self._samples += contribution.samples

    def finish(self) -> Aggregate:
        """The statistic of each column; NoDataError where nothing was added."""
        if not self._devices:
            raise NoDataError("no update to aggregate")
        rows = self._layout.row_of_each
        out = np.empty(self._layout.size, np.float64)
        for at in range(0, self._layout.size, COLUMNS):
            here = slice(at, at + COLUMNS)
            block = self._block(here, rows[here])
            block.sort(axis=1)
            out[here] = self._statistic(block)
        return Aggregate(out, self._devices, self._samples)

    def _block(self, here: slice, rows: NDArray[np.int32]) -> Floats:
        """`(columns, devices)`."""
        values: NDArray[Any] = np.ascontiguousarray(self._values[: self._devices, here].T)
        if not self._rounded:
            return np.asarray(values, np.float32)
        first = int(rows[0])
        scales = np.ascontiguousarray(self._scales[: self._devices, first : int(rows[-1]) + 1].T)
        return np.asarray(np.multiply(values, scales[rows - first], dtype=np.float32))


def trimmed_mean(share: float) -> Callable[[Floats], Doubles]:
    """The mean without the largest and the smallest: `share` of the devices at either end."""

    def statistic(block: Floats) -> Doubles:
        count = block.shape[1]
        cut = int(share * count)
        return np.asarray(block[:, cut : count - cut].mean(axis=1, dtype=np.float64))

    return statistic


def median(block: Floats) -> Doubles:
    """The median; of an even number the mean of the two in the middle."""
    count = block.shape[1]
    return np.asarray(block[:, (count - 1) // 2 : count // 2 + 1].mean(axis=1, dtype=np.float64))
