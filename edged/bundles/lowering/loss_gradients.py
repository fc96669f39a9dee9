"""Gradients of losses, with every row counting as much as its weight says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.bundles.graph.writer import Writer, attributes_of, refusal
from edged.bundles.losses.cross_entropy import SMALL, row_weights, weights_of_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx


def softmax_cross_entropy_grad(node: onnx.NodeProto, to: Writer) -> None:
    """wᵢ·(exp(log pᵢ) − onehot(labelᵢ)), the weights of a batch adding up to 1.

    With equal weights that is the gradient of the mean over the batch. Weights of classes, and one that is
    ignored, are in wᵢ: see `cross_entropy.row_weights`. ONNX operator specification, SoftmaxCrossEntropyLoss.
    The loss's own gradient is 1. Where it is a term of a sum, the gradient that comes to it is its factor
    times what the weights add up to.
    """
    gradient, log_probability, label = node.input[:3]
    attributes = attributes_of(node)
    shape = to.shape(log_probability, node)
    if len(shape) != 2:
        raise refusal(node, "only logits (batch, classes) are covered")
    if attributes.get("reduction", "mean") != "mean":
        raise refusal(node, "it must be reduced by its mean")
    true = _one_hot(label, shape[1] or 0, to)
    excess = to.add("Sub", [to.add("Exp", [log_probability]), true])
    if gradient == to.loss_gradient:
        to.add("Mul", [excess, to.loss_weights], node.output[0])
        return
    weights = row_weights(label, *weights_of_classes(node, 3), to)
    whole = to.add("ReduceSum", [to.row_weights], keepdims=0)
    factor = to.add("Mul", [weights, to.add("Div", [gradient, whole])])
    to.add("Mul", [excess, factor], node.output[0])


def _one_hot(label: str, classes: int, to: Writer) -> str:
    """Rows of the identity matrix, which is faster than OneHot as long as the matrix is small."""
    if classes <= SMALL:
        return to.add("Gather", [to.constant(np.eye(classes, dtype=np.float32)), label], axis=0)
    on_off = to.constant(np.array([0, 1], np.float32))
    return to.add("OneHot", [label, to.constant(np.int64(classes)), on_off], axis=-1)


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "SoftmaxCrossEntropyLossGrad": softmax_cross_entropy_grad,
}
