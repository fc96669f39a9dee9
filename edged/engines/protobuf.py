"""Reading ONNX files field by field, where no parser is there or none tells positions.

The wire format is that of protobuf.dev, "Encoding"; field numbers are those of `onnx.proto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# ModelProto.graph; GraphProto.initializer and .input; TensorProto.name and .raw_data.
GRAPH, INITIALIZER, INPUT, NAME, RAW = 7, 5, 11, 8, 9
# TensorProto.external_data and .data_location; StringStringEntryProto.key and .value; ValueInfoProto.name.
EXTERNAL, LOCATION, KEY, VALUE, VALUE_NAME = 13, 14, 1, 2, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Field(NamedTuple):
    """A field: its number, its first byte, and where its value begins and ends."""

    number: int
    start: int
    first: int
    last: int


def fields(content: bytes, at: int, end: int) -> Iterator[Field]:
    """Every field between `at` and `end`."""
    while at < end:
        start = at
        key, at = _varint(content, at)
        kind = key & 7
        if kind == _BYTES:
            length, at = _varint(content, at)
        elif kind == _VARINT:
            length = _varint(content, at)[1] - at
        else:
            length = {_FIXED64: 8, _FIXED32: 4}[kind]
        yield Field(key >> 3, start, at, at + length)
        at += length


def within(content: bytes, outer: Field) -> Iterator[Field]:
    """The fields of a message that is a field."""
    return fields(content, outer.first, outer.last)


def text(content: bytes, found: Field) -> str:
    """The value of a field that is a string."""
    return content[found.first : found.last].decode()


def message(number: int, length: int) -> bytes:
    """What stands before the value of a field of so many bytes."""
    return _encoded(number << 3 | _BYTES) + _encoded(length)


def raw_offsets(content: bytes) -> Iterator[tuple[str, int]]:
    """Name and first byte of the raw data of every initializer in a serialised model."""
    for tensor in initializers(content):
        inner = {field.number: field for field in within(content, tensor)}
        if RAW in inner and NAME in inner:
            yield text(content, inner[NAME]), inner[RAW].first


def initializers(content: bytes) -> Iterator[Field]:
    """The initializers of a serialised model."""
    return (field for field in _of_graph(content) if field.number == INITIALIZER)


def input_names(content: bytes) -> list[str]:
    """Names of the inputs of a serialised model, in their order."""
    found = []
    for value in _of_graph(content):
        if value.number == INPUT:
            found += [text(content, field) for field in within(content, value) if field.number == VALUE_NAME]
    return found


def _of_graph(content: bytes) -> Iterator[Field]:
    for field in fields(content, 0, len(content)):
        if field.number == GRAPH:
            yield from within(content, field)


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """The value at `at`, and where the next one begins."""
    value = shift = 0
    while True:
        value |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if content[at - 1] < 0x80:
            return value, at


def _encoded(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
