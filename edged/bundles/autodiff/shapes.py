"""Shapes, element types and constants of a graph, found by running it with two, three and seven rows.

Shape inference loses the batch at the first Reshape that leaves a size open. Two runs tell every size as a
function of the batch: k·batch + b is known from its values at two batches. The third run tells whether it is
such a function at all, which half of the batch is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.autodiff.tape import BATCH, Dim, Dims, TensorInfo
from edged.bundles.graph.edit import shape_of, subgraphs
from edged.engines.runtime import ort
from edged.errors import BundleError

# Rows for which a model is run to see which sizes grow with the batch.
ROWS = (2, 3, 7)
# Values of more elements are not kept: rules read axes, bounds, indices and the like.
MOST = 65536
# Element types of what counts or chooses.
WHOLE = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
_ARRAYS = {TensorProto.FLOAT: np.float32, TensorProto.INT64: np.int64}


def examine(model: onnx.ModelProto, parameters: Iterable[str]) -> TensorInfo:
    """What is known of the tensors of a model whose inputs have the batch as first axis.

    Values of the initialisers in `parameters` are not taken for constants. Raises BundleError when
    onnxruntime cannot run the model.
    """
    graph = model.graph
    kinds = kinds_of(model)
    variable = {str(value.name) for value in graph.input}.union(parameters)
    static = [name for name in _static(graph, variable) if kinds.get(name, 0) in (*WHOLE, TensorProto.FLOAT)]
    dims, found = _run(model, static)
    # Tables of float32 that a graph computes stay computed.
    values = {name: value for name, value in found.items() if kinds[name] in WHOLE or value.size == 1}
    return TensorInfo(dims, kinds, dict(constants(graph, variable)) | values)


def sizes_of(model: onnx.ModelProto) -> dict[str, Dims]:
    """Sizes of all tensors of a model, by name; BundleError when onnxruntime cannot run it."""
    return _run(model, [])[0]


def fixed_values(model: onnx.ModelProto, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Values of these tensors, as far as they follow from constants and from sizes other than the batch.

    Raises BundleError when onnxruntime cannot run the model.
    """
    wanted, inputs = set(names), {str(value.name) for value in model.graph.input}
    computed = [name for name in _static(model.graph, inputs) if name in wanted]
    written = {name: value for name, value in constants(model.graph).items() if name in wanted}
    return written | (_run(model, computed)[1] if computed else {})


def _size(one: int, other: int, third: int) -> Dim | None:
    """A size from its values for the three numbers of rows; None where it is no multiple and a rest.

    >>> _size(6, 6, 6), _size(2, 3, 7), _size(8, 12, 28), _size(3, 4, 8), _size(1, 1, 3)
    (6, 'batch', '4*batch', 'batch+1', None)
    """
    factor = (other - one) // (ROWS[1] - ROWS[0])
    rest = one - factor * ROWS[0]
    if third != factor * ROWS[2] + rest:
        return None
    if factor == 0:
        return one
    return (BATCH if factor == 1 else f"{factor}*{BATCH}") + (f"{rest:+d}" if rest else "")


def row_elements(dims: Dims) -> int | None:
    """How many elements of a tensor belong to one row; None where it does not grow with the rows.

    >>> row_elements(("batch", 3)), row_elements(("4*batch", 3)), row_elements((5, 3))
    (3, 12, None)
    """
    growing = [size for size in dims if isinstance(size, str)]
    if len(growing) != 1 or not growing[0].endswith(BATCH):
        return None
    return math.prod(size for size in dims if isinstance(size, int)) * int(
        growing[0].removesuffix(BATCH).rstrip("*") or 1
    )


def constants(graph: onnx.GraphProto, but: Iterable[str] = ()) -> dict[str, NDArray[Any]]:
    """Values written in the graph, as initialisers or Constant nodes; `but` are initialisers to leave out."""
    left = set(but)
    values = {
        str(tensor.name): numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.name not in left
    }
    for node in graph.node:
        if node.op_type == "Constant" and (value := _constant(node)) is not None:
            values[str(node.output[0])] = value
    return values


def _constant(node: onnx.NodeProto) -> NDArray[Any] | None:
    item = node.attribute[0]
    given = helper.get_attribute_value(item)
    if item.name == "value":
        return np.asarray(numpy_helper.to_array(given))
    if item.name.startswith("value_float"):
        return np.asarray(given, np.float32)
    return np.asarray(given, np.int64) if item.name.startswith("value_int") else None


def kinds_of(model: onnx.ModelProto) -> dict[str, int]:
    """Element types of the tensors and sequences of a model, by name, as in `TensorProto.DataType`."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    kinds = {
        str(value.name): int(_tensor_type(value).elem_type)
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    return kinds | {str(tensor.name): int(tensor.data_type) for tensor in inferred.initializer}


def _tensor_type(value: onnx.ValueInfoProto) -> onnx.TypeProto.Tensor:
    kind = value.type
    return kind.sequence_type.elem_type.tensor_type if kind.HasField("sequence_type") else kind.tensor_type


def _static(graph: onnx.GraphProto, variable: set[str]) -> list[str]:
    """Computed tensors that depend on constants and on shapes alone, whole numbers or booleans."""
    changing, found = set(variable), []
    for node in graph.node:
        if node.op_type in ("Shape", "Size"):
            found += node.output
        elif changing.isdisjoint(node.input) and not any(True for _ in subgraphs(node)):
            found += [] if node.op_type == "Constant" else node.output
        else:
            changing.update(node.output)
    return [name for name in found if name]


def _run(model: onnx.ModelProto, wanted: list[str]) -> tuple[dict[str, Dims], dict[str, NDArray[Any]]]:
    """Sizes of all tensors, and the wanted values that are the same for all numbers of rows."""
    graph, names = model.graph, _computed(model)
    batches = [{str(v.name): _zeros(v, rows) for v in graph.input} for rows in ROWS]
    watched = _watched(model, names, wanted)
    try:
        session = ort.trial_session(watched.SerializeToString())
        runs = [session.run(None, batch) for batch in batches]
    except ort.ERRORS as problem:
        raise BundleError(
            f"the model cannot be run: {ort.one_line(problem)}",
            where=str(graph.name),
            remedy="correct the sizes that the node reads; a mask of Attention needs a column for each key",
        ) from problem
    shapes: dict[str, list[tuple[int, ...]]] = {
        name: [tuple(run[i].tolist()) for run in runs] for i, name in enumerate(names)
    }
    shapes |= {name: [batch[name].shape for batch in batches] for name in batches[0]}
    values = {
        name: run[0]
        for name, *run in zip(wanted, *(run[len(names) :] for run in runs), strict=True)
        if all(np.array_equal(run[0], other) for other in run[1:])
    }
    dims = {name: found for name, each in shapes.items() if (found := _dims(each)) is not None}
    dims |= {str(tensor.name): tuple(tensor.dims) for tensor in graph.initializer}
    return dims, {name: value for name, value in values.items() if value.size <= MOST}


def _dims(shapes: Sequence[tuple[int, ...]]) -> Dims | None:
    if len(set(map(len, shapes))) > 1:
        return None
    sizes = tuple(_size(*each) for each in zip(*shapes, strict=True))
    return None if None in sizes else tuple(size for size in sizes if size is not None)


def _computed(model: onnx.ModelProto) -> list[str]:
    """Tensors that nodes compute; sequences have no shape."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    sequences = {value.name for value in inferred.value_info if value.type.HasField("sequence_type")}
    outputs = (name for node in model.graph.node for name in node.output)
    return [str(name) for name in outputs if name and name not in sequences]


def _watched(model: onnx.ModelProto, names: list[str], wanted: list[str]) -> onnx.ModelProto:
    """The model with the shapes of tensors, and the wanted tensors themselves, as its outputs."""
    # The tensors themselves as outputs would be lost where the runtime fuses what makes and reads them.
    shapes = [helper.make_node("Shape", [name], [f"{name}.measured"]) for name in names]
    copies = [helper.make_node("Identity", [name], [f"{name}.read"]) for name in wanted]
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.node.extend([*shapes, *copies])
    del made.graph.output[:]
    ends = [helper.make_tensor_value_info(item.output[0], TensorProto.INT64, None) for item in shapes]
    made.graph.output.extend([*ends, *(onnx.ValueInfoProto(name=item.output[0]) for item in copies)])
    return made


def _zeros(value: onnx.ValueInfoProto, rows: int) -> NDArray[Any]:
    sizes = [size if isinstance(size, int) else rows for size in shape_of(value)]
    return np.zeros(sizes, _ARRAYS[value.type.tensor_type.elem_type])
