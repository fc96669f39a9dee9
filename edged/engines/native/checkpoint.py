"""onnxruntime's training checkpoint as bytes, read and written without its training package.

A FlatBuffer with identifier `ODTC`; tables and fields are those of onnxruntime 1.19.2's
`onnxruntime/core/flatbuffers/schema/ort_training_checkpoint.fbs` and `ort.fbs`, the byte layout is that
of the FlatBuffers internals document. Only what float32 checkpoints hold is covered.

A nominal checkpoint names the parameters and holds no values. Where the values are too much for a FlatBuffer,
they lie in a second file, `<checkpoint>.data`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.engines.onnx.flatbuffer import FlatTable, root

IDENTIFIER = b"ODTC"
VERSION = 2
FLOAT = 1
GROUP = "group0"
# What the field holds at the beginning; the rate in use is set before every update.
INITIAL_RATE = 1e-3
# What the name of the second file ends in.
DATA = ".data"

Floats = NDArray[np.float32]
Property = int | float | str


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
    """Read the checkpoint in a file, and in the one beside it where there is one.

    Raises FormatError when it is damaged or holds something else than float32 tensors; OSError when a file
    cannot be read.
    """
    data = path.with_name(path.name + DATA)
    return load(path.read_bytes(), np.memmap(data, np.uint8, "r") if data.is_file() else None)


def load(content: bytes, data: NDArray[np.uint8] | None = None) -> TrainingCheckpoint:
    """Read a checkpoint; FormatError when it is damaged or holds something else than float32 tensors.

    `data` are the bytes of its second file.

    >>> checkpoint = TrainingCheckpoint({"w": np.ones((2, 3), np.float32)}, {}, step=7)
    >>> load(dump(checkpoint)).trainable["w"].shape
    (2, 3)
    """
    if content[4:8] != IDENTIFIER:
        raise FormatError("it has another beginning")
    try:
        return _checkpoint(root(content, IDENTIFIER), data)
    except FormatError:
        raise
    except (struct.error, ValueError, IndexError) as problem:
        raise FormatError("it ends too early, or points outside of itself") from problem


def _checkpoint(table: FlatTable, data: NDArray[np.uint8] | None) -> TrainingCheckpoint:
    if table.number(0, "<i") != VERSION:
        raise FormatError(f"its version is {table.number(0, '<i')}, not {VERSION}")
    module = table.table(1)
    if module is None:
        raise FormatError("its parameters are missing")
    nominal, groups = bool(module.number(2, "<B")), table.tables(2)
    outside = bool(module.number(3, "<B"))
    if outside and data is None:
        raise FormatError(f"its parameters are in another file, which is missing: *{DATA}")
    decode = _named if nominal else partial(_tensor, data=data if outside else None)
    return TrainingCheckpoint(
        trainable=dict(decode(item) for item in module.tables(0)),
        frozen=dict(decode(item) for item in module.tables(1)),
        moments={
            state.text(0): [_tensor(item, data if outside else None)[1] for item in state.tables(1)]
            for group in groups
            for state in group.tables(3)
        },
        step=int(groups[0].number(1, "<q")) if groups else 0,
        properties=_properties(table.table(3)),
        nominal=nominal,
    )


def _properties(bag: FlatTable | None) -> dict[str, Property]:
    if bag is None:
        return {}
    found: dict[str, Property] = {item.text(0): int(item.number(1, "<q")) for item in bag.tables(0)}
    found |= {item.text(0): float(item.number(1, "<f")) for item in bag.tables(1)}
    return found | {item.text(0): item.text(1) for item in bag.tables(2)}


def _named(table: FlatTable) -> tuple[str, Floats]:
    return table.text(0), np.empty(0, np.float32)


def _tensor(table: FlatTable, data: NDArray[np.uint8] | None) -> tuple[str, Floats]:
    name, shape = table.text(0), table.longs(2)
    size = 4 * math.prod(shape)
    raw: Any = table.raw(4)
    if data is not None and not raw:
        start = int(table.number(6, "<q"))
        raw = data[start : start + size] if start >= 0 else raw
    if table.number(3, "<i") != FLOAT or len(raw) != size:
        raise FormatError(f"{name!r} is no whole float32 tensor")
    return name, np.frombuffer(raw, "<f4").astype(np.float32).reshape(shape)


def dump(checkpoint: TrainingCheckpoint, places: Mapping[str, int] | None = None) -> bytes:
    """The checkpoint as onnxruntime writes it; equal ones give equal bytes.

    With `places` the values of parameters are in its second file, and begin there at these bytes.
    """
    writer = _Writer()
    writer.content += struct.pack("<I4s", 0, IDENTIFIER)
    form = partial(_parameter, writer, nominal=checkpoint.nominal, places=places)
    module: list[_Field] = [
        (0, "", writer.tables([form(*item) for item in sorted(checkpoint.trainable.items())])),
        (1, "", writer.tables([form(*item) for item in sorted(checkpoint.frozen.items())])),
    ]
    flags: list[_Field] = [(2, "<B", 1)] if checkpoint.nominal else []
    flags += [(3, "<B", 1)] if places is not None else []
    fields: list[_Field] = [(0, "<i", VERSION), (1, "", writer.table([*module, *flags]))]
    if checkpoint.moments:
        fields.append((2, "", writer.tables([_group(writer, checkpoint)])))
    if checkpoint.properties:
        fields.append((3, "", _property_bag(writer, checkpoint.properties)))
    struct.pack_into("<I", writer.content, 0, writer.table(fields)())
    return bytes(writer.content)


def _parameter(
    writer: _Writer, name: str, value: Floats, *, nominal: bool, places: Mapping[str, int] | None
) -> Callable[[], int]:
    if nominal:
        return _tensor_fields(writer, name, (), (4, "", writer.raw(b"")))
    if places is None:
        return _whole_tensor(writer, name, value)
    return _tensor_fields(writer, name, value.shape, (6, "<q", places[name]))


def _property_bag(writer: _Writer, properties: Mapping[str, Property]) -> Callable[[], int]:
    """Three lists of a name and a value, one a kind: whole numbers, float32 numbers, texts."""
    kinds: list[list[Callable[[], int]]] = [[], [], []]
    for name, value in sorted(properties.items()):
        if isinstance(value, str):
            kinds[2].append(writer.table([(0, "", writer.text(name)), (1, "", writer.text(value))]))
        elif isinstance(value, float):
            kinds[1].append(writer.table([(0, "", writer.text(name)), (1, "<f", value)]))
        else:
            kinds[0].append(writer.table([(0, "", writer.text(name)), (1, "<q", value)]))
    return writer.table([(number, "", writer.tables(items)) for number, items in enumerate(kinds)])


# Number of the field, its struct format and value; or "" and what writes the thing it points at.
_Field = tuple[int, str, "int | float | Callable[[], int]"]


def _group(writer: _Writer, checkpoint: TrainingCheckpoint) -> Callable[[], int]:
    states = []
    for name, kept in sorted(checkpoint.moments.items()):
        moments = [_whole_tensor(writer, f"momentum{i}", value) for i, value in enumerate(kept)]
        states.append(writer.table([(0, "", writer.text(name)), (1, "", writer.tables(moments))]))
    numbers: list[_Field] = [(1, "<q", checkpoint.step), (2, "<f", INITIAL_RATE)]
    return writer.table([(0, "", writer.text(GROUP)), *numbers, (3, "", writer.tables(states))])


def _whole_tensor(writer: _Writer, name: str, value: Floats) -> Callable[[], int]:
    return _tensor_fields(writer, name, value.shape, (4, "", writer.raw(value.astype("<f4").tobytes())))


def _tensor_fields(writer: _Writer, name: str, shape: Sequence[int], values: _Field) -> Callable[[], int]:
    """A tensor whose values are in `values`, or at the place in another file that it names."""
    return writer.table([(0, "", writer.text(name)), (2, "", writer.longs(shape)), (3, "<i", FLOAT), values])


class _Writer:
    """Front to back: a thing is written, then what it points at; offsets are filled in then."""

    def __init__(self) -> None:
        self.content = bytearray()

    def _align(self, size: int, ahead: int = 0) -> None:
        self.content += bytes(-(len(self.content) + ahead) % size)

    def table(self, fields: Sequence[_Field]) -> Callable[[], int]:
        """What writes this table and returns its position."""

        def write() -> int:
            # Largest first, so that all are aligned when the first is.
            ordered = sorted(fields, key=lambda item: -struct.calcsize(item[1] or "<I"))
            slots = 1 + max(item[0] for item in fields)
            places, size = [0] * slots, 8
            for number, form, _ in ordered:
                places[number] = size
                size += struct.calcsize(form or "<I")
            self._align(8, 4 + 2 * slots)
            vtable = len(self.content)
            self.content += struct.pack(f"<HH{slots}H", 4 + 2 * slots, size, *places)
            at = len(self.content)
            self.content += struct.pack("<i", at - vtable) + bytes(size - 4)
            self._fill(at, places, fields)
            return at

        return write

    def _fill(self, at: int, places: list[int], fields: Sequence[_Field]) -> None:
        for number, form, value in fields:
            place = at + places[number]
            if callable(value):
                target = value()
                struct.pack_into("<I", self.content, place, target - place)
            else:
                struct.pack_into(form, self.content, place, value)

    def tables(self, items: Sequence[Callable[[], int]]) -> Callable[[], int]:
        """Return the writer of a vector of tables."""

        def write() -> int:
            self._align(4)
            at = len(self.content)
            self.content += struct.pack("<I", len(items)) + bytes(4 * len(items))
            for i, item in enumerate(items):
                place = at + 4 + 4 * i
                target = item()
                struct.pack_into("<I", self.content, place, target - place)
            return at

        return write

    def _vector(self, length: int, data: bytes, alignment: int) -> int:
        self._align(alignment, 4)
        at = len(self.content)
        self.content += struct.pack("<I", length) + data
        return at

    def longs(self, values: Sequence[int]) -> Callable[[], int]:
        """Return the writer of a vector of int64."""
        return lambda: self._vector(len(values), struct.pack(f"<{len(values)}q", *values), 8)

    def raw(self, data: bytes) -> Callable[[], int]:
        """Return the writer of a vector of bytes."""
        return lambda: self._vector(len(data), data, 16)

    def text(self, value: str) -> Callable[[], int]:
        """Return the writer of a string."""
        data = value.encode()
        return lambda: self._vector(len(data), data + b"\0", 4)
