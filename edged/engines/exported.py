"""The parameters in an exported model, whichever engine or framework wrote it, read without the package onnx.

A device has no such package. Of a model file only the initializers are read: fields of Protocol Buffers by
their numbers in `onnx.proto`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from edged.errors import CorruptError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

# Numbers of fields: in a model, in its graph, in a tensor.
GRAPH, INITIALIZER = 7, 5
DIMS, DATA_TYPE, FLOATS, HALVES, NAME, RAW, DOUBLES, EXTERNAL = 1, 2, 4, 5, 8, 9, 10, 13
# By number of data type: how elements are stored, and the field that holds them where `raw_data` does not.
STORED = {1: ("<f4", FLOATS), 10: ("<f2", HALVES), 11: ("<f8", DOUBLES)}
# Wire types of Protocol Buffers.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
LARGEST_VARINT = 10  # bytes


def parameters_in(path: Path, names: Iterable[str]) -> dict[str, NDArray[np.float32]]:
    """The named parameters as they are in a model file.

    Raises
    ------
    ModelError
        When one of them is not in it.
    """
    wanted = tuple(names)
    found = parameters_within(path.read_bytes(), wanted)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ModelError(f"it has no parameter {missing[0]!r}", where=str(path), remedy="train from: bundle")
    return found


def parameters_within(content: bytes, names: Iterable[str]) -> dict[str, NDArray[np.float32]]:
    """Those of the named parameters that a serialised model holds, as float32.

    Raises
    ------
    CorruptError
        When it is no ONNX model, or keeps its weights in another file, or in another form than floats.
    """
    wanted = set(names)
    try:
        return dict(_parameters(memoryview(content), wanted))
    except (ValueError, OverflowError) as problem:  # OverflowError: a number that is no half
        raise CorruptError(f"is no ONNX model: {problem}", where="model") from None


def _parameters(model: memoryview, wanted: set[str]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    graphs = [value for number, value in _fields(model) if number == GRAPH]
    if not graphs:
        raise ValueError("it has no graph")
    for graph in graphs:
        for number, tensor in _fields(_message(graph)):
            if number == INITIALIZER:
                fields = _by_number(_message(tensor))
                name = bytes(_message(fields.get(NAME, [memoryview(b"")])[-1])).decode()
                if name in wanted:
                    yield name, _values(name, fields)


def _values(name: str, fields: dict[int, list[int | memoryview]]) -> NDArray[np.float32]:
    """The values of a tensor in its shape."""
    shape = list(_numbers(fields.get(DIMS, [])))
    kind = fields.get(DATA_TYPE, [0])[-1]
    if EXTERNAL in fields:
        raise ValueError(f"{name!r} is in another file")
    if not isinstance(kind, int) or kind not in STORED:
        raise ValueError(f"{name!r} has data type {kind}, not float, float16 or double")
    form, typed = STORED[kind]
    if RAW in fields:
        stored = np.frombuffer(_message(fields[RAW][-1]), form)
    elif typed == HALVES:
        stored = np.array(list(_numbers(fields.get(typed, []))), np.uint16).view(form)
    else:
        parts = fields.get(typed, [])
        stored = np.frombuffer(b"".join(bytes(_message(part)) for part in parts), form)
    if math.prod(shape) != stored.size:  # a negative size is a huge one here
        raise ValueError(f"{name!r} has {stored.size} values for the shape {shape}")
    return stored.reshape(shape).astype(np.float32)


def _numbers(parts: list[int | memoryview]) -> Iterator[int]:
    """Repeated numbers, packed or one by one."""
    for part in parts:
        if isinstance(part, int):
            yield part
            continue
        at = 0
        while at < len(part):
            value, at = _varint(part, at)
            yield value


def _by_number(message: memoryview) -> dict[int, list[int | memoryview]]:
    found: dict[int, list[int | memoryview]] = {}
    for number, value in _fields(message):
        found.setdefault(number, []).append(value)
    return found


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field of a message; values are integers, or the bytes they lie in.

    Source: Protocol Buffers' encoding, https://protobuf.dev/programming-guides/encoding/.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == BYTES:
            length, at = _varint(message, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"it has no fields of wire type {kind}")
        if length > len(message) - at:
            raise ValueError("it ends too early")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, the lowest first, and where the next field begins."""
    value = 0
    for i, byte in enumerate(message[at : at + LARGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError("a number in it has no end")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number is where a message should be")  # noqa: TRY004  not a caller's mistake
    return value
