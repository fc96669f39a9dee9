"""Writing the nodes that take the place of others in a model, with its shapes and constants at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.graph.edit import all_names, consumed, shape_of
from edged.bundles.graph.writer import Writer
from edged.engines.runtime import ort
from edged.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

Sizes = tuple[int, ...]
# Two numbers of rows tell what of a shape is the batch and what is not.
ROWS = (2, 3)


class Rewriter(Writer):
    """Collects the nodes of the rewritten model.

    Parameters
    ----------
    model
        The model that is read, without dropout: it is run.
    trainable
        Names of the parameters that are trained.
    rewritten
        The nodes that have a rule: the shapes of what they read are measured.
    """

    def __init__(
        self, model: onnx.ModelProto, trainable: Iterable[str], rewritten: Iterable[onnx.NodeProto]
    ) -> None:
        self.trainable = frozenset(trainable)
        self.read = consumed(model.graph) | {value.name for value in model.graph.output}
        self._sizes = measured(model, {str(node.input[0]) for node in rewritten})
        self.constants_of_model = constants(model.graph)
        shapes = {name: _common(*pair) for name, pair in self._sizes.items()}
        super().__init__(all_names(model.graph), shapes=_declared(model.graph) | shapes)

    def value(self, name: str) -> NDArray[Any] | None:
        """The value of a tensor that is written in the model; None of a parameter, or what is computed."""
        return self.constants_of_model.get(name)

    def leads_with_batch(self, name: str) -> bool:
        """Whether a tensor has one entry for each row along its first axis, and nothing else varies."""
        return name in self._sizes and all(
            sizes[:1] == (rows,) and sizes[1:] == self._sizes[name][0][1:]
            for sizes, rows in zip(self._sizes[name], ROWS, strict=True)
        )

    def elements_of_row(self, name: str) -> int | None:
        """How many elements of a tensor belong to one row; None where it does not grow with the rows."""
        if name not in self._sizes:
            return None
        total, more = (int(np.prod(sizes)) for sizes in self._sizes[name])
        return total // ROWS[0] if total * ROWS[1] == more * ROWS[0] else None


def _common(one: Sizes, other: Sizes) -> tuple[int | None, ...]:
    return tuple(size if size == again else None for size, again in zip(one, other, strict=True))


def _declared(graph: onnx.GraphProto) -> dict[str, tuple[int | None, ...]]:
    shapes = {
        str(value.name): tuple(size if isinstance(size, int) else None for size in shape_of(value))
        for value in (*graph.input, *graph.output, *graph.value_info)
    }
    return shapes | {str(tensor.name): tuple(tensor.dims) for tensor in graph.initializer}


def constants(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    """Values that are written in the model and are no parameters, by the tensor's name."""
    # A float tensor that is no scalar is a parameter, and an engine may overwrite it.
    values = {
        str(tensor.name): numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) == 0
    }
    for node in graph.node:
        for item in node.attribute:
            if node.op_type == "Constant" and item.name == "value":
                values[str(node.output[0])] = numpy_helper.to_array(item.t)
    return values


def measured(model: onnx.ModelProto, names: set[str]) -> dict[str, tuple[Sizes, Sizes]]:
    """Shapes of the named tensors with 2 and with 3 rows: the model is run.

    Shape inference would not do: it loses the batch at the first Reshape that leaves a size open.

    Raises
    ------
    BundleError
        When onnxruntime cannot run the model.
    """
    source = model.graph.input[0]
    row = [int(size) for size in shape_of(source)[1:]]
    given = [np.zeros((rows, *row), np.float32) for rows in ROWS]
    wanted = sorted(names.intersection(name for node in model.graph.node for name in node.output))
    pairs = {str(source.name): (given[0].shape, given[1].shape)}
    if wanted:
        one, other = _shapes(model, wanted, given)
        pairs |= {name: (one[i], other[i]) for i, name in enumerate(wanted)}
    return pairs


def _shapes(
    model: onnx.ModelProto, names: list[str], given: list[NDArray[np.float32]]
) -> list[list[tuple[int, ...]]]:
    # The tensors themselves as outputs would be lost where the runtime fuses what makes and reads them.
    shapes = [helper.make_node("Shape", [name], [f"{name}.measured"]) for name in names]
    ends = [helper.make_tensor_value_info(item.output[0], TensorProto.INT64, None) for item in shapes]
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    watched.graph.node.extend(shapes)
    del watched.graph.output[:]
    watched.graph.output.extend(ends)
    source = str(model.graph.input[0].name)
    try:
        session = ort.session(watched.SerializeToString())
        return [[tuple(found.tolist()) for found in session.run(None, {source: x})] for x in given]
    except ort.ERRORS as problem:
        raise BundleError(
            f"the model cannot be run: {ort.one_line(problem)}", where=str(model.graph.name)
        ) from problem
