"""onnxruntime's training checkpoint as bytes, read and written without its training package.

A FlatBuffer with identifier `ODTC`; tables and fields are those of onnxruntime 1.19.2's
`onnxruntime/core/flatbuffers/schema/ort_training_checkpoint.fbs` and `ort.fbs`. Only what float32 checkpoints
hold is covered.

A nominal checkpoint names the parameters and holds no values.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flatbuffers import number_types as N  # noqa: N812  as its own generator names it
from flatbuffers.builder import Builder
from flatbuffers.table import Table
from numpy.typing import NDArray

IDENTIFIER = b"ODTC"
VERSION = 2
FLOAT = 1
GROUP = "group0"
# What the field holds at the beginning; the rate in use is set before every update.
INITIAL_RATE = 1e-3

Floats = NDArray[np.float32]
Property = int | float | str
_NUMBERS = {int: N.Int64Flags, float: N.Float32Flags}


class FormatError(ValueError):
    """The bytes are no such checkpoint."""


@dataclass(frozen=True)
class TrainingCheckpoint:
    """Parameters by name, moments of each trainable one in the optimizer's order, updates so far.

    Properties are a user's own. A nominal one has empty arrays in place of the parameters.
    """

    trainable: dict[str, Floats]
    frozen: dict[str, Floats]
    moments: dict[str, list[Floats]] = field(default_factory=dict)
    step: int = 0
    properties: dict[str, Property] = field(default_factory=dict)
    nominal: bool = False


def read(path: Path) -> TrainingCheckpoint:
    """Read the checkpoint in a file.

    Raises FormatError as `load`; OSError when the file cannot be read.
    """
    return load(path.read_bytes())


def load(content: bytes) -> TrainingCheckpoint:
    """Read a checkpoint; FormatError when it is damaged or holds something else than float32 tensors.

    >>> checkpoint = TrainingCheckpoint({"w": np.ones((2, 3), np.float32)}, {}, step=7)
    >>> load(dump(checkpoint)).trainable["w"].shape
    (2, 3)
    """
    if content[4:8] != IDENTIFIER:
        raise FormatError("it has another beginning")
    try:
        return _checkpoint(_Table(content, struct.unpack_from("<I", content)[0]))
    except FormatError:
        raise
    except (struct.error, ValueError, IndexError, TypeError) as problem:
        raise FormatError("it ends too early, or points outside of itself") from problem


def _checkpoint(table: _Table) -> TrainingCheckpoint:
    if table.number(0, N.Int32Flags) != VERSION:
        raise FormatError(f"its version is {table.number(0, N.Int32Flags)}, not {VERSION}")
    module = table.table(1)
    if module is None:
        raise FormatError("its parameters are missing")
    nominal, groups = bool(module.number(2, N.BoolFlags)), table.tables(2)
    if module.number(3, N.BoolFlags):
        raise FormatError("its parameters are in another file, as those of models above 2 GB")
    decode = _named if nominal else _tensor
    return TrainingCheckpoint(
        trainable=dict(decode(item) for item in module.tables(0)),
        frozen=dict(decode(item) for item in module.tables(1)),
        moments={
            state.text(0): [_tensor(item)[1] for item in state.tables(1)]
            for group in groups
            for state in group.tables(3)
        },
        step=int(groups[0].number(1, N.Int64Flags)) if groups else 0,
        properties=_properties(table.table(3)),
        nominal=nominal,
    )


def _properties(bag: _Table | None) -> dict[str, Property]:
    if bag is None:
        return {}
    found: dict[str, Property] = {item.text(0): int(item.number(1, N.Int64Flags)) for item in bag.tables(0)}
    found |= {item.text(0): float(item.number(1, N.Float32Flags)) for item in bag.tables(1)}
    return found | {item.text(0): item.text(1) for item in bag.tables(2)}


def _named(table: _Table) -> tuple[str, Floats]:
    return table.text(0), np.empty(0, np.float32)


def _tensor(table: _Table) -> tuple[str, Floats]:
    name, shape, raw = table.text(0), table.longs(2), table.raw(4)
    if table.number(3, N.Int32Flags) != FLOAT or len(raw) != 4 * math.prod(shape):
        raise FormatError(f"{name!r} is no whole float32 tensor")
    return name, np.frombuffer(raw, "<f4").astype(np.float32).reshape(shape)


class _Table:
    """A table of a FlatBuffer; a field that is absent is 0, empty or None."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._table = content, Table(content, at)

    def _place(self, number: int) -> int:
        """Position of a field behind that of the table; 0 where it is absent."""
        return int(self._table.Offset(4 + 2 * number))

    def number(self, number: int, flags: Any) -> Any:
        """Return a number of this type."""
        place = self._place(number)
        return self._table.Get(flags, self._table.Pos + place) if place else 0

    def table(self, number: int) -> _Table | None:
        """Return a field that is another table."""
        place = self._place(number)
        return _Table(self._content, self._table.Indirect(self._table.Pos + place)) if place else None

    def vector(self, number: int) -> tuple[int, int]:
        """First byte of a vector, and how many elements it has."""
        place = self._place(number)
        if not place:
            return 0, 0
        length = int(self._table.VectorLen(place))
        if length > len(self._content):
            raise IndexError(length)
        return int(self._table.Vector(place)), length

    def raw(self, number: int) -> bytes:
        """Return a vector of bytes."""
        start, length = self.vector(number)
        return self._content[start : start + length]

    def text(self, number: int) -> str:
        """Return a field that is a string."""
        return self.raw(number).decode()

    def longs(self, number: int) -> tuple[int, ...]:
        """Return a vector of int64."""
        start, length = self.vector(number)
        return struct.unpack_from(f"<{length}q", self._content, start)

    def tables(self, number: int) -> list[_Table]:
        """Return a vector of tables."""
        start, length = self.vector(number)
        return [_Table(self._content, self._table.Indirect(start + 4 * i)) for i in range(length)]


def dump(checkpoint: TrainingCheckpoint) -> bytes:
    """Return the checkpoint as onnxruntime reads it; equal ones give equal bytes."""
    to = Builder()
    form = partial(_write_tensor, to, named=checkpoint.nominal)
    module = [
        _write_vector(to, [form(*item) for item in sorted(parameters.items())])
        for parameters in (checkpoint.trainable, checkpoint.frozen)
    ]
    lists = [(None, one) for one in module]
    held = _write_table(to, [*lists, (N.BoolFlags, checkpoint.nominal)])
    fields = [(N.Int32Flags, VERSION), (None, held)]
    groups = _write_vector(to, [_write_group(to, checkpoint)]) if checkpoint.moments else 0
    properties = _write_properties(to, checkpoint.properties) if checkpoint.properties else 0
    to.Finish(_write_table(to, [*fields, (None, groups), (None, properties)]), IDENTIFIER)
    return bytes(to.Output())


def _write_table(to: Builder, fields: Sequence[tuple[Any, Any]]) -> int:
    """Write a table of numbers, each with its type, and of things written before; those of 0 are absent."""
    to.StartObject(len(fields))
    for number, (flags, value) in enumerate(fields):
        if flags is not None:
            to.PrependSlot(flags, number, value, 0)
        elif value:
            to.PrependUOffsetTRelativeSlot(number, value, 0)
    return int(to.EndObject())


def _write_vector(to: Builder, tables: Sequence[int]) -> int:
    to.StartVector(4, len(tables), 4)
    for table in reversed(tables):
        to.PrependUOffsetTRelative(table)
    return int(to.EndVector())


def _write_tensor(to: Builder, name: str, value: Floats, *, named: bool = False) -> int:
    """Write a tensor; one that is only named has no values."""
    dims = to.CreateNumpyVector(np.array(() if named else value.shape, np.int64))
    raw = to.CreateByteVector(b"" if named else value.astype("<f4").tobytes())
    fields = [(None, to.CreateString(name)), (None, 0), (None, dims), (N.Int32Flags, FLOAT), (None, raw)]
    return _write_table(to, fields)


def _write_group(to: Builder, checkpoint: TrainingCheckpoint) -> int:
    states = []
    for name, kept in sorted(checkpoint.moments.items()):
        held = _write_vector(to, [_write_tensor(to, f"momentum{i}", value) for i, value in enumerate(kept)])
        states.append(_write_table(to, [(None, to.CreateString(name)), (None, held)]))
    held, group = _write_vector(to, states), to.CreateString(GROUP)
    numbers = [(N.Int64Flags, checkpoint.step), (N.Float32Flags, INITIAL_RATE)]
    return _write_table(to, [(None, group), *numbers, (None, held)])


def _write_properties(to: Builder, properties: Mapping[str, Property]) -> int:
    """Write three lists of a name and a value, one a kind: whole numbers, float32 numbers, texts."""
    kinds: dict[type, list[int]] = {int: [], float: [], str: []}
    for name, value in sorted(properties.items()):
        held = (None, to.CreateString(value)) if isinstance(value, str) else (_NUMBERS[type(value)], value)
        kinds[type(value)].append(_write_table(to, [(None, to.CreateString(name)), held]))
    return _write_table(to, [(None, _write_vector(to, items)) for items in kinds.values()])
