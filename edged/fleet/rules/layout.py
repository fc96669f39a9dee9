"""The parameters of a fleet's model as one long vector, and updates laid out in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edged.domain.arrays import Floats
from edged.domain.training.weight_coding import Coded, Weights
from edged.errors import CorruptError

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class EncodedUpdate:
    """An update laid out: `(size,)` int8 values, and `(rows,)` float32 scales that multiply them."""

    values: NDArray[np.int8]
    scales: Floats

    def to_bytes(self) -> bytes:
        """Return the values, and behind them the scales as little-endian float32."""
        return self.values.tobytes() + self.scales.astype("<f4").tobytes()


@dataclass(frozen=True)
class Layout:
    """Names in order with their shapes; tensor after tensor makes the vector.

    >>> layout = Layout.of({"w": np.ones((2, 3), np.float32), "b": np.zeros(2, np.float32)})
    >>> layout.names, layout.size, layout.rows
    (('b', 'w'), 8, 3)
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, weights: Mapping[str, Floats]) -> Layout:
        """Create the layout of some weights."""
        names = tuple(sorted(weights))
        return cls(names, tuple(weights[name].shape for name in names))

    @cached_property
    def size(self) -> int:
        """Count of numbers in the vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    @cached_property
    def rows(self) -> int:
        """Scales that the values have: one for each row of a matrix, one for any other tensor."""
        return sum(_rows(shape) for shape in self.shapes)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, see `EncodedUpdate.to_bytes`."""
        return self.size + 4 * self.rows

    @cached_property
    def by_name(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return dict(zip(self.names, self.shapes, strict=True))

    @cached_property
    def row_of_each(self) -> NDArray[np.int32]:
        """`(size,)`: which scale each number of the vector has."""
        counts = [count for s in self.shapes for count in [math.prod(s) // max(1, _rows(s))] * _rows(s)]
        return np.repeat(np.arange(self.rows, dtype=np.int32), counts)

    def vector(self, weights: Mapping[str, Floats]) -> Floats:
        """Return weights as `(size,)` float32."""
        out = np.zeros(self.size, np.float32)
        for name, here, _ in self._places:
            out[here] = weights[name].reshape(-1)
        return out

    def weights(self, vector: Floats | Doubles) -> Weights:
        """Return the tensors of a vector, by name, as float32."""
        return {
            name: np.array(vector[here], np.float32).reshape(self.by_name[name])
            for name, here, _ in self._places
        }

    def row(self, coded: Mapping[str, Coded]) -> EncodedUpdate:
        """Lay out a coded update, int8 with its scales; tensors that it leaves out have not changed."""
        values, scales = np.zeros(self.size, np.int8), np.zeros(self.rows, np.float32)
        for name, here, rows in self._places:
            if name in coded:
                values[here] = coded[name].values.reshape(-1)
                scales[rows] = coded[name].scale
        return EncodedUpdate(values, scales)

    def change(self, row: EncodedUpdate) -> Floats:
        """Return the numbers of a row, `(size,)` float32; what overflows becomes infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.multiply(row.values, row.scales[self.row_of_each], dtype=np.float32))

    def from_bytes(self, data: bytes) -> EncodedUpdate:
        """Return the row of these bytes; CorruptError when there are not as many as it has."""
        if len(data) != self.row_bytes:
            raise CorruptError(f"{len(data)} bytes are no update of this model", where="fleet")
        return EncodedUpdate(
            np.frombuffer(data, np.int8, self.size), np.frombuffer(data, "<f4", offset=self.size)
        )

    @cached_property
    def _places(self) -> list[tuple[str, slice, slice]]:
        """Each tensor's place among the numbers, and among the scales."""
        found, at, row = [], 0, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size, rows = math.prod(shape), _rows(shape)
            found.append((name, slice(at, at + size), slice(row, row + rows)))
            at, row = at + size, row + rows
        return found


def _rows(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) > 1 else 1
