"""Entries of `metadata_props` in a serialised ONNX model; onnxruntime shows them as `custom_metadata_map`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from edged.domain import protobuf
from edged.domain.protobuf import Field
from edged.engines.onnx.fields import GRAPH, INPUT, KEY, VALUE

METADATA = 14  # ModelProto.metadata_props
PREFIX = "edged."
# ValueInfoProto.type, TypeProto.tensor_type, .shape, TensorShapeProto.dim; Dimension.dim_value
_SHAPE, _SIZE = (2, 1, 2), 1


def with_metadata(content: bytes, entries: Mapping[str, str]) -> bytes:
    """Return a model with these entries, whose names begin with `edged.`, in place of all such entries.

    Raises ValueError when this is no model.
    """
    kept = (
        content[field.start : field.last]
        for field in protobuf.fields(content, 0, len(content))
        if field.number != METADATA or not _name(content, field).startswith(PREFIX)
    )
    return b"".join([*kept, *_entries(entries)])


def input_width(content: bytes) -> int:
    """Return the number of values in a row of a model's first input; 0 where it leaves a size open."""
    graphs = [part for part in protobuf.fields(content, 0, len(content)) if part.number == GRAPH]
    found = next(part for graph in graphs for part in protobuf.within(content, graph) if part.number == INPUT)
    for number in _SHAPE:
        found = next(part for part in protobuf.within(content, found) if part.number == number)
    return math.prod(_size(content, axis) for axis in [*protobuf.within(content, found)][1:])


def _size(content: bytes, axis: Field) -> int:
    known = (part for part in protobuf.within(content, axis) if part.number == _SIZE)
    return sum(size for part in known for size in protobuf.numbers(content, part))


def _name(content: bytes, entry: Field) -> str:
    found = [protobuf.text(content, part) for part in protobuf.within(content, entry) if part.number == KEY]
    return found[-1] if found else ""


def _entries(entries: Mapping[str, str]) -> Iterator[bytes]:
    for name, value in entries.items():
        parts = b"".join(
            protobuf.message(number, len(text)) + text
            for number, text in ((KEY, name.encode()), (VALUE, value.encode()))
        )
        yield protobuf.message(METADATA, len(parts)) + parts
