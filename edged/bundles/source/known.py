"""What is known of a graph before it runs: sizes, and the whole numbers that are computed from them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from edged.bundles.autodiff.shapes import MOST, ROWS, constants, kinds_of
from edged.bundles.graph.edit import opset_of, shape_of, subgraphs
from edged.bundles.graph.writer import NodeWriter, Shape, attributes_of

if TYPE_CHECKING:
    Values = dict[str, NDArray[Any]]

# The domain of nodes that the version converter is to leave as they are.
WAITING = "edged.waiting"
# Of no fixed value, or of no tensor.
_NO_NUMBERS = ("Bernoulli", "Multinomial", "Random", "Sequence")
# Of a size that they are given.
_GROWING = ("ConstantOfShape", "Expand", "Range", "Tile")
_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, NotImplementedError)


class Informed(NodeWriter):
    """A writer that knows values, sizes and element types of the tensors of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        values, shapes = _known(model)
        super().__init__(_names(model.graph), values, shapes)
        self.opset, self._kinds, self._graph = opset_of(model), kinds_of(model), model.graph

    def kind(self, name: str) -> int:
        """Element type of a tensor."""
        return int(self._kinds.get(name, TensorProto.FLOAT))

    def written(self, name: str) -> NDArray[Any] | None:
        """The value of a tensor that is written in the model, of any type; None of what is computed."""
        return constants(self._graph).get(name)


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Every name of a tensor or node, those in bodies included."""
    for item in (*graph.input, *graph.initializer):
        yield str(item.name)
    for node in graph.node:
        yield from (str(node.name), *node.input, *node.output)
        for body in subgraphs(node):
            yield from _names(body)


def _known(model: onnx.ModelProto) -> tuple[Values, dict[str, Shape]]:
    """Values and sizes that are the same for two numbers of rows."""
    (one, shape), (other, wide) = (_for_rows(model, rows) for rows in (ROWS[0], ROWS[-1]))
    shapes = {
        name: tuple(a if a == b else None for a, b in zip(sizes, wide[name], strict=True))
        for name, sizes in shape.items()
        if len(sizes) == len(wide.get(name, ()))
    }
    values = {
        name: value for name, value in one.items() if name in other and np.array_equal(value, other[name])
    }
    return values, shapes


def _for_rows(model: onnx.ModelProto, rows: int) -> tuple[Values, dict[str, Shape]]:
    """Whole numbers that follow from constants and sizes, and the sizes, where the batch has so many rows."""
    made = copy.deepcopy(model)
    graph = made.graph
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = dim.dim_value if dim.HasField("dim_value") else rows
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    del graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(made, data_prop=True).graph
    shapes: dict[str, Shape] = {
        str(value.name): tuple(size if isinstance(size, int) else None for size in shape_of(value))
        for value in (*inferred.input, *inferred.value_info)
        if value.type.tensor_type.HasField("shape")
    }
    shapes |= {str(tensor.name): tuple(tensor.dims) for tensor in graph.initializer}
    weights = {str(tensor.name) for tensor in graph.initializer if tensor.data_type == TensorProto.FLOAT}
    values = {name: value for name, value in constants(graph, weights).items() if _is_number(value)}
    for node in graph.node:
        sizes = shapes.get(node.input[0]) if node.op_type == "Shape" else None
        if sizes is not None and None not in sizes:
            given = attributes_of(node)
            values[node.output[0]] = np.array(sizes, np.int64)[given.get("start", 0) : given.get("end")]
        elif (found := _folded(node, values, opset_of(model))) is not None:
            values.update(zip(node.output, found, strict=False))
    return values, shapes


def _is_number(value: NDArray[Any]) -> bool:
    """Whether a tensor counts or chooses, or is a single number."""
    return value.dtype.kind in "bi" or value.ndim == 0


def _folded(node: onnx.NodeProto, values: Values, opset: int) -> list[NDArray[Any]] | None:
    """The outputs of a node of which all inputs are known; None where they are not, or no whole numbers."""
    names = {name for name in node.input if name}
    plain = node.domain in ("", "ai.onnx") and not any(True for _ in subgraphs(node))
    if not plain or any(kind in node.op_type for kind in _NO_NUMBERS) or not values.keys() >= names:
        return None
    if node.op_type in _GROWING and any(_extent(values[name]) > MOST for name in names):
        return None
    inputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in names]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output if name
    ]
    graph = helper.make_graph([node], "node", inputs, outputs)
    try:
        found = ReferenceEvaluator(graph, opsets={"": opset}).run(
            None, {name: values[name] for name in names}
        )
    except _ERRORS:
        return None
    arrays = [np.asarray(value) for value in found]
    return arrays if all(map(_is_number, arrays)) else None


def _extent(value: NDArray[Any]) -> float:
    return float(np.prod(np.maximum(np.abs(value.astype(np.float64)), 1)))
