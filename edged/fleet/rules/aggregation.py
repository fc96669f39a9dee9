"""Many updates made one: by the mean, or by statistics that a share of bad devices cannot move far.

McMahan et al. (2017) weigh by samples. Updates that come late are made smaller by their age, as in Xie et
al., "Asynchronous federated optimization" (2019), and Nguyen et al., "Federated learning with buffered
asynchronous aggregation" (2022). Median and trimmed mean follow Yin et al., "Byzantine-robust distributed
learning: towards optimal statistical rates" (2018); they do not weigh devices by their samples, which a bad
one would state too high.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edged.errors import NoDataError
from edged.fleet.rules.layout import Doubles, EncodedUpdate, Layout

if TYPE_CHECKING:
    from edged.domain.training.weight_coding import Floats

COLUMNS = 256
RELEASED = 512
"""Rows after which memory is given back."""


@dataclass(frozen=True)
class AdmittedUpdate:
    """The admitted update of one device, laid out."""

    device: str
    samples: int  # its weight where updates are weighed
    factor: float  # what it is multiplied with: clipping, and the discount of what is late
    row: EncodedUpdate


@dataclass(frozen=True)
class Aggregate:
    """Result of the aggregation of a round, of so many devices and samples."""

    change: Doubles  # the `(size,)` float64 difference to its base
    devices: int
    samples: int


class Reducer(Protocol):
    """Aggregates updates, which come in the order of the devices' names."""

    def begin(self, layout: Layout, expected: int) -> None:
        """Prepare for a round: the model's tensors, and the maximum number of updates."""

    def add(self, contribution: AdmittedUpdate) -> None:
        """Add the update of one device."""

    def finish(self) -> Aggregate:
        """Return the aggregate; NoDataError if there were no updates."""


class Mean:
    """The mean of all updates, weighed by samples; the same memory for any number of devices."""

    def begin(self, layout: Layout, expected: int) -> None:  # noqa: ARG002  no room is needed
        """Start a sum at 0."""
        self._layout = layout
        self._sum = np.zeros(layout.size, np.float64)
        self._devices = self._samples = 0

    def add(self, contribution: AdmittedUpdate) -> None:
        """Add an update, weighted by its samples."""
        change = self._layout.change(contribution.row)
        self._sum += np.multiply(change, contribution.samples * contribution.factor, dtype=np.float64)
        self._devices += 1
        self._samples += contribution.samples

    def finish(self) -> Aggregate:
        """Divide the sum by the number of samples."""
        if not self._samples:
            raise NoDataError("no update to average")
        return Aggregate(self._sum / self._samples, self._devices, self._samples)


class MatrixStorage(Protocol):
    """Allocates the memory of a matrix."""

    def matrix(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Allocate a matrix; its values are undefined."""

    def release(self) -> None:
        """Allow the system to reclaim the memory; the values stay."""


class Matrix:
    """All updates, one row a device; a statistic of each column is the result.

    Blocks of columns lie one after the other, so that one alone need be in memory. `statistic` makes
    `(columns,)` of `(columns, devices)` float32, each row in ascending order; the matrix lies in `room`.
    """

    def __init__(self, statistic: Callable[[Floats], Doubles], room: MatrixStorage) -> None:
        self._statistic, self._room = statistic, room

    def begin(self, layout: Layout, expected: int) -> None:
        """Allocate room for `expected` updates."""
        self._layout = layout
        self._blocks = -(-layout.size // COLUMNS)
        self._values = self._room.matrix((self._blocks, expected, COLUMNS), np.int8)
        self._row = np.zeros(self._blocks * COLUMNS, np.int8)
        self._scales = np.zeros((expected, layout.rows), np.float32)
        self._devices = self._samples = 0

    def add(self, contribution: AdmittedUpdate) -> None:
        """Store an update in the next row."""
        at, row = self._devices, contribution.row
        self._row[: self._layout.size] = row.values
        self._scales[at] = row.scales * np.float32(contribution.factor)
        self._values[:, at] = self._row.reshape(self._blocks, COLUMNS)
        self._devices += 1
        self._samples += contribution.samples
        if self._devices % RELEASED == 0:
            self._room.release()

    def finish(self) -> Aggregate:
        """Return the statistic of each column; NoDataError where nothing was added."""
        if not self._devices:
            raise NoDataError("no update to aggregate")
        out, rows = np.empty(self._layout.size, np.float64), self._layout.row_of_each
        for number in range(self._blocks):
            here = slice(number * COLUMNS, (number + 1) * COLUMNS)
            block = self._block(number, rows[here])
            block.sort(axis=1)
            out[here] = self._statistic(block)
            self._room.release()
        return Aggregate(out, self._devices, self._samples)

    def _block(self, number: int, rows: NDArray[np.int32]) -> Floats:
        """Return the values of a block, as `(columns, devices)`."""
        columns = self._values[number, : self._devices, : len(rows)]
        values: NDArray[Any] = np.ascontiguousarray(columns.T)
        first = int(rows[0])
        scales = np.ascontiguousarray(self._scales[: self._devices, first : int(rows[-1]) + 1].T)
        return np.asarray(np.multiply(values, scales[rows - first], dtype=np.float32))


def trimmed_mean(share: float) -> Callable[[Floats], Doubles]:
    """Return the mean without the largest and the smallest: `share` of the devices at either end."""

    def statistic(block: Floats) -> Doubles:
        count = block.shape[1]
        cut = int(share * count)
        return np.asarray(block[:, cut : count - cut].mean(axis=1, dtype=np.float64))

    return statistic


def median(block: Floats) -> Doubles:
    """Return the median; of an even number the mean of the two in the middle."""
    count = block.shape[1]
    return np.asarray(block[:, (count - 1) // 2 : count // 2 + 1].mean(axis=1, dtype=np.float64))
