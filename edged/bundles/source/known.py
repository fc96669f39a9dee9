"""Facts about a graph before it runs: sizes, whole numbers made from them, and branches that If takes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from edged.bundles.autodiff.shapes import MOST, ROWS, constants, kinds_of
from edged.bundles.graph.edit import opset_of, rename_inputs, shape_of, shortened, subgraphs
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


def fold_choices(model: onnx.ModelProto, add_note: Callable[[str], None]) -> None:
    """Replace every If with a constant condition by its branch, in place; the others stay as they are.

    A condition is constant when it follows from constants and from sizes that do not vary with the batch.
    """
    chosen: list[str] = []
    while any(node.op_type == "If" for node in model.graph.node):
        known, before = _Folder(model), len(chosen)
        for node in model.graph.node:
            condition = known.value(node.input[0]) if node.op_type == "If" else None
            if condition is None:
                known.copy(node)
            else:
                known.write_branch(node, "then_branch" if condition.all() else "else_branch")
                chosen.append(str(node.name))
        if len(chosen) == before:
            break
        del model.graph.node[:], model.graph.value_info[:]
        model.graph.node.extend(known.nodes)
        model.graph.initializer.extend(known.tensors)
    if chosen:
        add_note(f"choices with a constant condition replaced by their branch: {shortened(chosen)}")


class _Folder(Informed):
    """Writes the nodes of a graph; `tensors` are the initialisers that came out of branches."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.tensors: list[onnx.TensorProto] = []

    def write_branch(self, node: onnx.NodeProto, branch: str) -> None:
        """Write the nodes of a branch under names that the graph does not have, then its outputs."""
        body = attributes_of(node)[branch]
        scope: dict[str, str] = {}
        for tensor in body.initializer:
            scope[tensor.name] = tensor.name = self._free(tensor.name)
            self.tensors.append(tensor)
        for inner in body.node:
            rename_inputs(inner, scope)
            scope.update({name: self._free(name) for name in inner.output if name})
            inner.output[:] = [scope.get(name, "") for name in inner.output]
            inner.name = self._free(inner.name or inner.op_type)
            self.copy(inner)
        for value, name in zip(body.output, node.output, strict=True):
            self.add("Identity", [scope.get(value.name, value.name)], name)

    def _free(self, name: str) -> str:
        made, number = name, 0
        while made in self._taken:
            made, number = f"{name}.{number}", number + 1
        self._taken.add(made)
        return made
