"""Models with functions, and with other inputs than one tensor of float32 rows."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, inliner, numpy_helper

from edged.bundles.graph.edit import (
    CONTRIB_DOMAIN,
    AddNote,
    all_names,
    opset_of,
    put_first,
    rename_reads,
    shape_of,
    shortened,
    subgraphs,
)
from edged.bundles.graph.writer import NodeWriter, constant_node
from edged.engines.runtime import ort
from edged.errors import BundleError, ConfigError

STANDARD = ("", "ai.onnx")
_ERRORS = (RuntimeError, ValueError, onnx.checker.ValidationError)
_REMEDY = "give it as a function of standard operators: --op-library FILE.onnx, see docs/preflight.md"


def write_out(
    model: onnx.ModelProto,
    library: onnx.ModelProto | None = None,
    add_note: AddNote | None = None,
) -> onnx.ModelProto:
    """The model with every function, its own and those of the library, written out.

    Raises ConfigError when the library has no functions; BundleError when a function cannot be written out.
    """
    if library is not None:
        _add(model, library)
    known = {(function.domain, function.name) for function in model.functions}
    called = sorted(
        {f"{n.domain}.{n.op_type}" for n in every_node(model.graph) if (n.domain, n.op_type) in known}
    )
    if not model.functions:
        return model
    try:
        made = inliner.inline_local_functions(model)
    except _ERRORS as problem:
        what = f"its functions cannot be written out: {ort.one_line(problem)}"
        raise BundleError(what, where=str(model.graph.name)) from problem
    if called and add_note is not None:
        add_note(f"functions written out: {shortened(called)}")
    return made


def _add(model: onnx.ModelProto, library: onnx.ModelProto) -> None:
    if not library.functions:
        remedy = "an ONNX file with a function for each operator; compiled ones are not taken"
        raise ConfigError("the library has no functions", where="--op-library", remedy=remedy)
    own = {(function.domain, function.name) for function in model.functions}
    model.functions.extend(f for f in library.functions if (f.domain, f.name) not in own)
    domains = {entry.domain for entry in model.opset_import}
    for function in library.functions:
        if function.domain not in domains:
            domains.add(function.domain)
            model.opset_import.append(helper.make_opsetid(function.domain, 1))


def refuse_unknown(model: onnx.ModelProto) -> None:
    """Raise BundleError for the first operator that no onnxruntime has, by its name and its node's.

    onnxruntime's own operators pass here: what of them can be trained, the preflight tells.
    """
    version = min(opset_of(model), onnx.defs.onnx_opset_version())
    for node in every_node(model.graph):
        if node.domain not in STANDARD and node.domain != CONTRIB_DOMAIN:
            what = f"operator {node.domain}.{node.op_type} is a custom one"
            raise BundleError(what, where=f"node {node.name}", remedy=_REMEDY)
        if node.domain in STANDARD and not onnx.defs.has(node.op_type, version, ""):
            what = f"there is no operator {node.op_type} in opset {opset_of(model)}"
            raise BundleError(what, where=f"node {node.name}", remedy=_REMEDY)


def every_node(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph, those of inner graphs included."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from every_node(body)


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
        to = NodeWriter()
        _as_whole(graph, value, value.name, to)
        put_first(graph, to.nodes)
        value.type.tensor_type.elem_type = TensorProto.FLOAT
        add_note(
            f"the input {value.name!r} takes whole numbers: the row's numbers are cast to them in the graph"
        )


def _as_whole(graph: onnx.GraphProto, value: onnx.ValueInfoProto, source: str, to: NodeWriter) -> None:
    """Write the cast of a tensor to what an input takes; the readers of the input read its result."""
    whole = f"{value.name}.whole"
    rename_reads(graph, value.name, whole)
    to.add("Cast", [source], whole, to=value.type.tensor_type.elem_type)


def _join(graph: onnx.GraphProto, add_note: AddNote) -> None:
    """Make the inputs groups of one row, in their order."""
    values, taken, to = list(graph.input), all_names(graph), NodeWriter()
    row = ROW if ROW not in taken else f"{ROW}.row"
    sizes = [[int(size) for size in shape_of(value)[1:]] for value in values]
    widths = [math.prod(each) for each in sizes]
    parts = [f"{value.name}.part" for value in values]
    to.copy(constant_node(f"{row}.lengths", np.array(widths, np.int64)))
    to.operator("Split", [row, f"{row}.lengths"], parts, axis=1)
    for value, part, each in zip(values, parts, sizes, strict=True):
        shape = f"{value.name}.shape"
        to.copy(constant_node(shape, np.array([-1, *each], np.int64)))
        if value.type.tensor_type.elem_type in _WHOLE:
            _as_whole(graph, value, to.add("Reshape", [part, shape], f"{value.name}.shaped"), to)
        else:
            to.add("Reshape", [part, shape], value.name)
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info(row, TensorProto.FLOAT, ["batch", sum(widths)]))
    put_first(graph, to.nodes)
    groups = ", ".join(f"{value.name} {width}" for value, width in zip(values, widths, strict=True))
    add_note(f"the inputs are groups of one row of {sum(widths)} numbers, in this order: {groups}")
