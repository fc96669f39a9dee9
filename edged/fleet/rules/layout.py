"""The parameters of a fleet's model as one long vector, and updates laid out in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.training.weight_deltas import Coded, Floats, Weights, decode
from edged.errors import CorruptError

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class EncodedUpdate:
    """An update laid out: `(size,)` int8 with `(rows,)` float32 scales, or float32 without."""

    values: NDArray[Any]
    scales: Floats | None = None

    def to_bytes(self) -> bytes:
        """As they lie in memory, little-endian: scales after the values."""
        scales = b"" if self.scales is None else self.scales.astype("<f4").tobytes()
        return self.values.astype(self.values.dtype.newbyteorder("<")).tobytes() + scales


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
        """How many numbers the vector has."""
        return sum(math.prod(shape) for shape in self.shapes)

    def update_bytes(self, dtype: str) -> int:
        """About the bytes of an update whose numbers have this type, not compressed."""
        return self.size * np.dtype(dtype).itemsize + 4 * self.rows

    @cached_property
    def rows(self) -> int:
        """Scales that int8 values have: one for each row of a matrix, one for any other tensor."""
        return sum(_rows(shape) for shape in self.shapes)

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

    def row(self, coded: Mapping[str, Coded]) -> EncodedUpdate:
        """A coded update laid out; tensors that are not there have not changed.

        CorruptError when positions lie outside of a tensor.
        """
        if any(tensor.values.dtype != np.int8 for tensor in coded.values()):
            with np.errstate(over="ignore", invalid="ignore"):
                return EncodedUpdate(self.vector(decode(coded)))
        values, scales = np.zeros(self.size, np.int8), np.zeros(self.rows, np.float32)
        for name, here, rows in self._places:
            if name in coded:
                values[here] = _integers(name, coded[name])
                scales[rows] = coded[name].scale
        return EncodedUpdate(values, scales)

    def change(self, row: EncodedUpdate) -> Floats:
        """The numbers of a row, `(size,)` float32; what overflows becomes infinite."""
        if row.scales is None:
            return np.asarray(row.values, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.multiply(row.values, row.scales[self.row_of_each], dtype=np.float32))

    def from_bytes(self, data: bytes) -> EncodedUpdate:
        """The row that `to_bytes` was called for; CorruptError when there are not as many bytes as it has."""
        if len(data) == 4 * self.size:
            return EncodedUpdate(np.frombuffer(data, "<f4"))
        if len(data) != self.size + 4 * self.rows:
            raise CorruptError(f"{len(data)} bytes are no update of this model", where="fleet")
        return EncodedUpdate(
            np.frombuffer(data, np.int8, self.size), np.frombuffer(data, "<f4", offset=self.size)
        )

    def integers(self, row: EncodedUpdate) -> tuple[NDArray[np.int8], Floats]:
        """Its int8 values and their scales; floats are rounded, each row of a matrix for itself."""
        if row.scales is not None:
            return row.values, row.scales
        values, scales = np.zeros(self.size, np.int8), np.zeros(self.rows, np.float32)
        for _, here, rows in self._places:
            values[here], scales[rows] = _rounded(row.values[here].reshape(rows.stop - rows.start, -1))
        return values, scales

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


def _integers(name: str, tensor: Coded) -> NDArray[np.int8]:
    if tensor.gaps is None:
        return tensor.values.reshape(-1)
    # Integers of 8 bits are exact as float32: what looks at the positions need not be there twice.
    spread = decode({name: Coded(tensor.values, tensor.shape, None, tensor.gaps)})[name]
    return spread.reshape(-1).astype(np.int8)


def _rounded(rows: Floats) -> tuple[NDArray[np.int8], Floats]:
    scale = np.asarray(np.abs(rows).max(axis=1, initial=0.0) / 127.0, np.float32)
    divisor = np.where(scale > 0, scale, np.float32(1.0))
    return np.rint(rows / divisor[:, None]).astype(np.int8).reshape(-1), scale
