"""Models that take something else than one tensor of float32 rows, brought to that.

A sample is one row of numbers. Whole numbers are cast inside the graph, several inputs are groups of the row,
one behind the other, and what computes in half or double precision computes in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.edit import all_names, node, rename_reads, shape_of, shortened, subgraphs

if TYPE_CHECKING:
    AddNote = Callable[[str], None]

ROW = "features"
_WHOLE = (TensorProto.INT64, TensorProto.INT32)
_FLOATS = (TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


def in_single_precision(model: onnx.ModelProto, add_note: AddNote) -> None:
    """Let a model of half or double precision compute in float32, in place."""
    if changed := _narrow(model.graph):
        add_note(f"computed in half or double precision, in float32 now: {shortened(sorted(changed))}")


def _narrow(graph: onnx.GraphProto) -> set[str]:
    """Change every tensor, constant and Cast of another precision; the names of inputs and parameters."""
    changed: set[str] = set()
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if kind.elem_type in _FLOATS:
            kind.elem_type = TensorProto.FLOAT
            changed.update({value.name}.intersection(item.name for item in graph.input))
    for tensor in graph.initializer:
        if tensor.data_type in _FLOATS:
            changed.add(tensor.name)
            _narrowed(tensor)
    for item in graph.node:
        for attribute in item.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in _FLOATS:
                _narrowed(attribute.t)
            elif attribute.name in ("to", "dtype") and attribute.i in _FLOATS:
                attribute.i = TensorProto.FLOAT
        for body in subgraphs(item):
            changed |= _narrow(body)
    return changed


def _narrowed(tensor: onnx.TensorProto) -> None:
    values = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def one_row(graph: onnx.GraphProto, add_note: AddNote) -> None:
    """Let a graph whose inputs are `(batch, ...)` of fixed sizes take one float32 tensor, in place."""
    if len(graph.input) > 1:
        _join(graph, add_note)
    elif graph.input and graph.input[0].type.tensor_type.elem_type in _WHOLE:
        value = graph.input[0]
        _put_first(graph, _as_whole(graph, value, value.name))
        value.type.tensor_type.elem_type = TensorProto.FLOAT
        add_note(
            f"the input {value.name!r} takes whole numbers: the row's numbers are cast to them in the graph"
        )


def _as_whole(graph: onnx.GraphProto, value: onnx.ValueInfoProto, source: str) -> list[onnx.NodeProto]:
    """The cast of a tensor to what an input takes; the readers of the input read its result."""
    whole = f"{value.name}.whole"
    rename_reads(graph, value.name, whole)
    return [node("Cast", [source], whole, to=value.type.tensor_type.elem_type)]


def _join(graph: onnx.GraphProto, add_note: AddNote) -> None:
    """Make the inputs groups of one row, in their order."""
    values, taken = list(graph.input), all_names(graph)
    row = ROW if ROW not in taken else f"{ROW}.row"
    sizes = [[int(size) for size in shape_of(value)[1:]] for value in values]
    widths = [math.prod(each) for each in sizes]
    parts = [f"{value.name}.part" for value in values]
    lengths = helper.make_node(
        "Constant", [], [f"{row}.lengths"], value=numpy_helper.from_array(np.array(widths, np.int64))
    )
    added = [lengths, helper.make_node("Split", [row, f"{row}.lengths"], parts, name=f"{row}.parts", axis=1)]
    for value, part, each in zip(values, parts, sizes, strict=True):
        shape, shaped = f"{value.name}.shape", value.name
        form = numpy_helper.from_array(np.array([-1, *each], np.int64))
        added.append(helper.make_node("Constant", [], [shape], name=shape, value=form))
        if value.type.tensor_type.elem_type in _WHOLE:
            shaped = f"{value.name}.shaped"
            added.append(node("Reshape", [part, shape], shaped))
            added += _as_whole(graph, value, shaped)
        else:
            added.append(node("Reshape", [part, shape], shaped))
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info(row, TensorProto.FLOAT, ["batch", sum(widths)]))
    _put_first(graph, added)
    groups = ", ".join(f"{value.name} {width}" for value, width in zip(values, widths, strict=True))
    add_note(f"the inputs are groups of one row of {sum(widths)} numbers, in this order: {groups}")


def _put_first(graph: onnx.GraphProto, added: list[onnx.NodeProto]) -> None:
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*added, *rest])
