"""Operators of an ONNX model whose output is as large as values of its input say; no ONNX package needed.

Such a model may pass any trial and ask for terabytes with one sample. Sizes that follow from shapes and
constants are the same for all samples, and show in a trial.

Source: onnx.proto3, messages ModelProto to AttributeProto, and the ONNX operator specification, opset 22.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edged.domain.protobuf import BYTES, Field, fields, text, within

GRAPH, FUNCTION = 7, 25  # of a model
NODE, INPUT = 1, 11  # of a graph
FUNCTION_NODE, FUNCTION_INPUT = 7, 4
READ, WRITTEN, OPERATOR, ATTRIBUTE = 1, 2, 4, 5  # of a node
INNER = (6, 11)  # of an attribute: a graph, several graphs
NAME = 1  # of an input

SHAPES = {"Shape", "Size"}
"""Operators whose output says nothing of values."""

SIZES: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,), "BlackmanWindow": (0,), "CenterCropPad": (1,), "Col2Im": (1, 2),
    "ConstantOfShape": (0,), "Expand": (1,), "HammingWindow": (0,), "HannWindow": (0,), "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1), "OneHot": (1,), "Pad": (1,), "Range": (0, 1, 2), "Resize": (2, 3),
    "Tile": (1,), "Upsample": (1,),
}  # fmt: skip
"""Positions of the inputs that say how large the output is."""


def computed_size(path: Path) -> str | None:
    """Return the type of the first operator whose output's size is computed from values; None without one.

    Values are those of the model's inputs, and whatever an inner graph or a function gets. Raises OSError
    when the file cannot be read; ValueError when this is no model.
    """
    content = path.read_bytes()
    for part in fields(content, 0, len(content)):
        if part.number == GRAPH:
            names = {_name(content, given) for given in within(content, part) if given.number == INPUT}
            found = _first(content, part, NODE, names)
        elif part.number == FUNCTION:
            names = {text(content, x) for x in within(content, part) if x.number == FUNCTION_INPUT}
            found = _first(content, part, FUNCTION_NODE, names)
        else:
            continue
        if found is not None:
            return found
    return None


def _first(content: bytes, graph: Field, kind: int, values: set[str]) -> str | None:
    """The first such operator of a graph, in which `values` are computed; adds what it computes itself."""
    for node in within(content, graph):
        if node.number != kind:
            continue
        parts = list(within(content, node))
        names = [text(content, part) for part in parts if part.number == READ]
        operator = next((text(content, part) for part in parts if part.number == OPERATOR), "")
        inner = list(_inner_graphs(content, parts))
        if any(names[i] in values for i in SIZES.get(operator, ()) if i < len(names)):
            return operator
        for body in inner:
            given = {_name(content, each) for each in within(content, body) if each.number == INPUT}
            if found := _first(content, body, NODE, values | given):
                return found
        if operator not in SHAPES and (inner or not values.isdisjoint(names)):
            values.update(text(content, part) for part in parts if part.number == WRITTEN)
    return None


def _inner_graphs(content: bytes, parts: list[Field]) -> Iterator[Field]:
    for attribute in parts:
        if attribute.number == ATTRIBUTE:
            inner = within(content, attribute)
            yield from (field for field in inner if field.number in INNER and field.kind == BYTES)


def _name(content: bytes, value: Field) -> str:
    return next((text(content, part) for part in within(content, value) if part.number == NAME), "")
