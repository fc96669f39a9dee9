"""The parameters of a fleet's model as one long vector, and updates laid out in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edged.domain.deltas import Coded, Floats, Weights, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

Doubles = NDArray[np.float64]


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
        """That of some weights."""
        names = tuple(sorted(weights))
        return cls(names, tuple(weights[name].shape for name in names))

    @cached_property
    def size(self) -> int:
        """Numbers in the vector."""
        return sum(math.prod(shape) for shape in self.shapes)

    @cached_property
    def rows(self) -> int:
        """Scales that int8 values have: one for each row of a matrix, one for any other tensor."""
        return sum(_rows(shape) for shape in self.shapes)

    @cached_property
    def by_name(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return dict(zip(self.names, self.shapes, strict=True))

    def row_of_each(self) -> NDArray[np.int32]:
        """`(size,)`: which scale each number of the vector has."""
        counts = [count for s in self.shapes for count in [math.prod(s) // max(1, _rows(s))] * _rows(s)]
        return np.repeat(np.arange(self.rows, dtype=np.int32), counts)

    def vector(self, weights: Mapping[str, Floats]) -> Floats:
        """`(size,)` float32; tensors that are not there are 0."""
        out = np.zeros(self.size, np.float32)
        for name, here, _ in self._places:
            if name in weights:
                out[here] = weights[name].reshape(-1)
        return out

    def weights(self, vector: Floats | Doubles) -> Weights:
        """The tensors of a vector, by name, as float32."""
        return {
            name: np.array(vector[here], np.float32).reshape(self.by_name[name])
            for name, here, _ in self._places
        }

    def change(self, coded: Mapping[str, Coded]) -> Floats:
        """A coded update as a vector; what overflows becomes infinite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.vector(decode(coded))

    def integers(self, coded: Mapping[str, Coded], values: NDArray[np.int8], scales: Floats) -> None:
        """Lay an update out as `(size,)` int8 and `(rows,)` float32 scales; floats are rounded row by row."""
        values[:], scales[:] = 0, 0
        for name, here, rows in self._places:
            if name not in coded:
                continue
            tensor = coded[name]
            if tensor.values.dtype == np.int8 and tensor.scale is not None:
                values[here] = _spread_out(tensor)
                scales[rows] = tensor.scale
            else:
                values[here], scales[rows] = _rounded(decode({name: tensor})[name])

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


def _spread_out(tensor: Coded) -> NDArray[np.int8]:
    if tensor.gaps is None:
        return tensor.values.reshape(-1)
    out = np.zeros(math.prod(tensor.shape), np.int8)
    out[np.cumsum(tensor.gaps.astype(np.int64) + 1) - 1] = tensor.values
    return out


def _rounded(value: Floats) -> tuple[NDArray[np.int8], Floats]:
    rows = value.reshape(_rows(value.shape), -1)
    scale = np.asarray(np.abs(rows).max(axis=1, initial=0.0) / 127.0, np.float32)
    divisor = np.where(scale > 0, scale, np.float32(1.0))
    return np.rint(rows / divisor[:, None]).astype(np.int8).reshape(-1), scale
