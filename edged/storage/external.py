"""Where an ONNX file says that tensors lie outside of it, found without any ONNX package.

Only the fields that lead to tensors are followed. What is no protobuf ends the search: nothing loads that.

Source: onnx.proto3 of the ONNX project, messages ModelProto to StringStringEntryProto; the encoding of
protocol buffers, https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Of each message the fields that hold messages on the way to a tensor.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "place"},
}
_VARINT, _FIXED64, _BYTES, _GROUP, _END_GROUP, _FIXED32 = range(6)
_LONGEST = 4096  # bytes of an entry that says where a tensor is


def external_places(path: Path) -> Iterator[str]:
    """The `location` of every tensor that the model in file `path` keeps elsewhere.

    Raises
    ------
    OSError
        When the file cannot be read.
    """
    with path.open("rb") as file:
        whole = file.seek(0, os.SEEK_END)
        waiting = [("model", 0, whole)]
        while waiting:
            kind, start, end = waiting.pop()
            for field, begin, length in _fields(file, start, end):
                inner = _FIELDS[kind].get(field)
                if inner == "place":
                    yield from _location(file, begin, length)
                elif inner is not None:
                    waiting.append((inner, begin, begin + length))


def _fields(file: IO[bytes], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and length of the fields in a message that have a length."""
    position, within = start, 0
    while position < end:
        file.seek(position)
        key = _varint(file, 5)
        if key is None:
            return
        kind, length = key & 7, 0
        if kind in (_VARINT, _BYTES):
            value = _varint(file, 10)
            if value is None:
                return
            length = value if kind == _BYTES else 0
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        elif kind in (_GROUP, _END_GROUP):
            within += 1 if kind == _GROUP else -1
        begin = file.tell()
        position = begin + length
        if kind > _FIXED32 or position > end or within < 0:
            return
        if kind == _BYTES and within == 0:
            yield key >> 3, begin, length


def _location(file: IO[bytes], begin: int, length: int) -> Iterator[str]:
    """The value of an entry whose key is `location`; what is too long to be read counts as one."""
    if length > _LONGEST:
        yield f"{length} bytes of name"
        return
    said = {}
    for field, at, size in _fields(file, begin, begin + length):
        file.seek(at)
        said[field] = file.read(size)
    if said.get(1) == b"location":
        yield said.get(2, b"").decode(errors="replace")


def _varint(file: IO[bytes], longest: int) -> int | None:
    value = 0
    for i in range(longest):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << 7 * i
        if byte[0] < 0x80:
            return value
    return None
