"""A loss in which every row has a weight, in place of the mean over the batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper

from edged.bundles.graph.edit import rename_inputs
from edged.bundles.losses.builtin import OUTPUT
from edged.bundles.losses.cross_entropy import row_weights, weights_of_classes
from edged.bundles.lowering import lower

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edged.bundles.losses.training_graph import TrainingGraph
    from edged.bundles.lowering import Writer

# Input (batch, 1) of the step graph; the weights of a batch add up to the scale of its gradient.
WEIGHTS = "step.row_weights"


def weighted_loss(item: onnx.NodeProto, to: Writer) -> str:
    """Σ wᵢ·lossᵢ, where lossᵢ is the mean over the outputs of row i; the name of the result, `(1,)`."""
    if item.op_type == "SoftmaxCrossEntropyLoss":
        rows = to.name("rows")
        outputs = [rows, *item.output[1:]]
        to.loss_weights = weights = row_weights(item.input[1], *weights_of_classes(item, 2), to)
        to.copy(helper.make_node(item.op_type, list(item.input[:2]), outputs, name=rows, reduction="none"))
    else:
        weights = to.row_weights
        rank = len(to.shape(item.input[0], item))
        axes = list(range(1, rank))
        rows = to.add("ReduceMean", [item.input[0]], axes=axes, keepdims=0) if axes else item.input[0]
    return to.add("MatMul", [rows, weights])


def row_gradient(each: str, shape: tuple[int | None, ...], to: Writer) -> None:
    """Write wᵢ/k for every one of the k outputs of row i; broadcasting repeats it where it is used.

    `each` is the tensor of which the loss is the mean, `shape` its shape.
    """
    row = [size or 1 for size in shape[1:]]
    weights = WEIGHTS if len(row) == 1 else to.add("Reshape", [WEIGHTS, to.sizes(-1, *([1] * len(row)))])
    width = math.prod(row)
    operator, inputs = ("Identity", [weights]) if width == 1 else ("Mul", [weights, to.number(1 / width)])
    to.add(operator, inputs, f"{each}_grad")


GRADIENT = f"{OUTPUT}_grad"
# What the gradient builder calls the shape of what a mean was made of, behind the name of its node.
_SHAPE = "_Grad/Shaped_X"


class GeneralLoss:
    """A loss that is more than one mean over the rows, such as a sum of losses, written into the step graph.

    It takes the nodes of a training graph one by one, in their order. The step's gradients are scaled by Σw,
    the sum of the weights of the rows, so the gradient of the loss with respect to itself is not 1 but Σw.
    Means over the rows that it is made of become weighted ones; the rest, such as a penalty on parameters,
    has no rows.
    """

    def __init__(self, source: TrainingGraph, to: Writer) -> None:
        self._to, self._shapes = to, source.shapes
        # Names of the nodes that are means over the rows, and what they are means of.
        self._means = {item.name: item.input[0] for item in source.graph.node if self._is_mean(item)}
        self._names = {OUTPUT: to.name("loss")}
        self._total = to.add("ReduceSum", [to.row_weights], keepdims=0)
        size = next(list(tensor.dims) for tensor in source.graph.initializer if tensor.name == GRADIENT)
        to.add("Reshape", [self._total, to.sizes(*size)], GRADIENT)

    def _is_mean(self, item: onnx.NodeProto) -> bool:
        if item.op_type == "SoftmaxCrossEntropyLoss":
            return True
        if item.op_type != "ReduceMean":
            return False
        before, behind = (self._shapes.get(name) for name in (item.input[0], item.output[0]))
        by_rows = before is not None and before[:1] == (None,)
        return by_rows and behind is not None and all(size == 1 for size in behind)

    def write(self, item: onnx.NodeProto) -> str | None:
        """Write a node; the name of the loss times the sum of the weights, `(1,)`, once it is there."""
        to, own = self._to, self._own(item)
        if item.name in self._means:
            mean = to.add("Div", [weighted_loss(own, to), self._total])
            to.add("Reshape", [mean, to.sizes(*(1 for _ in self._shapes[item.output[0]]))], own.output[0])
        elif item.op_type == "Expand" and item.input[1].removesuffix(_SHAPE) in self._means:
            self._row_gradient(own, self._means[item.input[1].removesuffix(_SHAPE)])
        else:
            lower(own, to)
        if OUTPUT not in item.output:
            return None
        return to.add("Mul", [to.add("Reshape", [self._names[OUTPUT], to.sizes(1)]), self._total])

    def _own(self, item: onnx.NodeProto) -> onnx.NodeProto:
        """The node with another name for the loss: the step's own is not yet whole."""
        copy = onnx.NodeProto()
        copy.CopyFrom(item)
        rename_inputs(copy, self._names)
        copy.name = self._names.get(copy.name, copy.name)
        for i, name in enumerate(copy.output):
            copy.output[i] = self._names.get(name, name)
        return copy

    def _row_gradient(self, item: onnx.NodeProto, each: str) -> None:
        """What a mean over the rows gives back to each of them, times n·wᵢ/Σw."""
        to, axes = self._to, len(self._shapes[each])
        count = to.add("Cast", [to.add("Size", [to.row_weights])], to=TensorProto.FLOAT)
        share = to.add("Mul", [to.row_shares, count])
        alike = to.add("Expand", list(item.input))
        rows = to.add("Reshape", [share, to.sizes(-1, *([1] * (axes - 1)))])
        to.add("Mul", [alike, rows], item.output[0])


def without_gradient(tensors: Iterable[onnx.TensorProto]) -> list[onnx.TensorProto]:
    """The constants of a training graph but for the gradient of the loss, which here is computed."""
    return [tensor for tensor in tensors if tensor.name != GRADIENT]
