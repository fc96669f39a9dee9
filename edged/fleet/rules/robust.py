"""Statistics of each parameter over all devices, which a share of bad ones cannot move far.

Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (2018). Devices are not
weighed by their samples, which a bad one would state too high.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from edged.errors import NoDataError
from edged.fleet.rules.aggregation import Aggregate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.training.weight_deltas import Floats
    from edged.fleet.rules.aggregation import AdmittedUpdate
    from edged.fleet.rules.layout import Doubles, Layout

COLUMNS = 256
RELEASED = 512
"""Rows after which memory is given back."""


class MatrixStorage(Protocol):
    """Allocates the memory of a matrix."""

    def matrix(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Allocate a matrix; its values are undefined."""

    def release(self) -> None:
        """Allow the system to reclaim the memory; the values stay."""


class Matrix:
    """All updates, one row a device; a statistic of each column is the result.

    Blocks of columns lie one after the other, so that one alone need be in memory.

    `statistic` makes `(columns,)` of `(columns, devices)` float32, each row in ascending order; the matrix
    lies in `room`. `int8` as `dtype` is exact for updates that come as int8, and rounds others to that;
    `float32` is exact for all. `directions` leaves out devices whose updates have pointed against the others
    so far; None counts all.
    """

    def __init__(
        self,
        statistic: Callable[[Floats], Doubles],
        room: MatrixStorage,
        dtype: Literal["int8", "float32"] = "int8",
        directions: UpdateDirections | None = None,
    ) -> None:
        self._statistic, self._room, self._directions = statistic, room, directions
        self._rounded = dtype == "int8"

    def begin(self, layout: Layout, expected: int) -> None:
        """Allocate room for `expected` updates."""
        self._layout = layout
        self._blocks = -(-layout.size // COLUMNS)
        kind = np.int8 if self._rounded else np.float32
        self._values = self._room.matrix((self._blocks, expected, COLUMNS), kind)
        self._row = np.zeros(self._blocks * COLUMNS, kind)
        self._scales = np.zeros((expected, layout.rows if self._rounded else 0), np.float32)
        self._names: list[str] = []
        self._samples: list[int] = []

    def add(self, contribution: AdmittedUpdate) -> None:
        """Store an update in the next row."""
        at, factor = len(self._names), np.float32(contribution.factor)
        if self._rounded:
            values, scales = self._layout.integers(contribution.row)
            self._row[: self._layout.size], self._scales[at] = values, scales * factor
        else:
            self._row[: self._layout.size] = self._layout.change(contribution.row) * factor
        self._values[:, at] = self._row.reshape(self._blocks, COLUMNS)
        self._names.append(contribution.device)
        self._samples.append(contribution.samples)
        if len(self._names) % RELEASED == 0:
            self._room.release()

    def finish(self) -> Aggregate:
        """The statistic of each column; NoDataError where nothing was added."""
        if not self._names:
            raise NoDataError("no update to aggregate")
        directions = self._directions
        counted = np.ones(len(self._names), np.bool_) if directions is None else self._trusted(directions)
        change = self._reduced(counted)
        if directions is None:
            return Aggregate(change, len(self._names), sum(self._samples))
        directions.saw(self._names, self._cosines(change))
        if (counted != (now := self._trusted(directions))).any():
            counted, change = now, self._reduced(now)
        samples = int(np.asarray(self._samples)[counted].sum())
        left_out = tuple(name for name, here in zip(self._names, counted, strict=True) if not here)
        return Aggregate(change, int(counted.sum()), samples, directions.dump(), left_out)

    def _trusted(self, directions: UpdateDirections) -> NDArray[np.bool_]:
        """Devices that count, `(n,)`: all of them where not even half would be left."""
        opposed = directions.opposed(self._names)
        return ~opposed if 2 * opposed.sum() < len(opposed) else np.ones(len(opposed), np.bool_)

    def _reduced(self, counted: NDArray[np.bool_]) -> Doubles:
        out = np.empty(self._layout.size, np.float64)
        for here, block in self._each():
            kept = block if counted.all() else np.ascontiguousarray(block[:, counted])
            kept.sort(axis=1)
            out[here] = self._statistic(kept)
        return out

    def _cosines(self, change: Doubles) -> Doubles:
        """Between each device's update and the change of all, `(n,)`; 0 where one of them is 0."""
        products, squares = np.zeros(len(self._names)), np.zeros(len(self._names))
        for here, block in self._each():
            products += change[here] @ block
            squares += np.einsum("cd,cd->d", block, block, dtype=np.float64)
        lengths = np.sqrt(squares * float(change @ change))
        return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)

    def _each(self) -> Iterator[tuple[slice, Floats]]:
        """Columns and what all devices have sent for them, block by block."""
        rows = self._layout.row_of_each
        for number in range(self._blocks):
            here = slice(number * COLUMNS, (number + 1) * COLUMNS)
            yield here, self._block(number, rows[here])
            self._room.release()

    def _block(self, number: int, rows: NDArray[np.int32]) -> Floats:
        """Return the values of a block, as `(columns, devices)`."""
        columns = self._values[number, : len(self._names), : len(rows)]
        values: NDArray[Any] = np.ascontiguousarray(columns.T)
        if not self._rounded:
            return np.asarray(values, np.float32)
        first = int(rows[0])
        scales = np.ascontiguousarray(self._scales[: len(self._names), first : int(rows[-1]) + 1].T)
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


NAMES, SUMS = "directions.devices", "directions.sums"
DEVICES = 100_000  # that are remembered; those that have not sent for longest are forgotten


class UpdateDirections:
    """Sums of cosines between a device's updates and the aggregates, by device, over all rounds so far.

    A device that turns its updates around points against the others from the first round on. Later rounds
    say less: what remains to be learned points a different way on every device. So the mean over rounds
    counts. Cosines as in Cao et al., "FLTrust: Byzantine-robust federated learning via trust bootstrapping"
    (2021), where the coordinator has data of its own to compare with; here it is the robust aggregate.
    """

    def __init__(self, memory: Mapping[str, NDArray[Any]]) -> None:
        self._sums: dict[str, float] = {}
        if NAMES in memory and SUMS in memory:
            names = json.loads(memory[NAMES].tobytes())
            self._sums = dict(zip(names, memory[SUMS].tolist(), strict=True))

    def saw(self, devices: Sequence[str], cosines: NDArray[np.float64]) -> None:
        """Record the directions of the updates of a round."""
        for device, cosine in zip(devices, cosines.tolist(), strict=True):
            self._sums[device] = self._sums.pop(device, 0.0) + cosine
        for device in list(self._sums)[:-DEVICES]:
            del self._sums[device]

    def opposed(self, devices: Sequence[str]) -> NDArray[np.bool_]:
        """Which of these have pointed against the others more than with them, `(n,)`."""
        return np.array([self._sums.get(device, 0.0) < 0 for device in devices], np.bool_)

    def dump(self) -> dict[str, NDArray[Any]]:
        """Return the record as arrays, for the next round."""
        names = np.frombuffer(json.dumps(list(self._sums)).encode(), np.uint8)
        return {NAMES: names, SUMS: np.array(list(self._sums.values()), np.float64)}
