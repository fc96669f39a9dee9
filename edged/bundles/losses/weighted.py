"""A loss in which every row has a weight, in place of the mean over the batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from onnx import helper

from edged.bundles.losses.cross_entropy import row_weights, weights_of_classes

if TYPE_CHECKING:
    import onnx

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
