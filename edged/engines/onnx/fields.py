"""Where things lie in a serialised ONNX model; field numbers are those of `onnx.proto`."""

from __future__ import annotations

from collections.abc import Iterator

from edged.domain.protobuf import Field, fields, text, within

# ModelProto.graph; GraphProto.initializer and .input; ValueInfoProto.name.
GRAPH, INITIALIZER, INPUT, VALUE_NAME = 7, 5, 11, 1
# TensorProto; of external_data StringStringEntryProto.key and .value.
DIMS, DATA_TYPE, FLOATS, INTEGERS, NAME, RAW, DOUBLES, EXTERNAL, LOCATION = 1, 2, 4, 5, 8, 9, 10, 13, 14
KEY, VALUE = 1, 2


def raw_offsets(content: bytes) -> Iterator[tuple[str, int]]:
    """Name and first byte of the raw data of every initializer in a serialised model."""
    for tensor in initializers(content):
        inner = {field.number: field for field in within(content, tensor)}
        if RAW in inner and NAME in inner:
            yield text(content, inner[NAME]), inner[RAW].first


def initializers(content: bytes) -> Iterator[Field]:
    """The initializers of a serialised model."""
    return _of_graph(content, INITIALIZER)


def input_names(content: bytes) -> list[str]:
    """Names of the inputs of a serialised model, in their order."""
    values = _of_graph(content, INPUT)
    return [
        text(content, field)
        for value in values
        for field in within(content, value)
        if field.number == VALUE_NAME
    ]


def graphs(content: bytes) -> Iterator[Field]:
    """The graph of a serialised model; said in parts, each of them."""
    return (field for field in fields(content, 0, len(content)) if field.number == GRAPH)


def _of_graph(content: bytes, number: int) -> Iterator[Field]:
    return (field for graph in graphs(content) for field in within(content, graph) if field.number == number)
