"""Batch normalisation: plain arithmetic where it is frozen, as it is where it is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.bundles.autodiff.rules.batch_norm import is_trained
from edged.bundles.graph.writer import attributes_of, untrainable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from edged.bundles.rewriting.rewriter import Rewriter


def batch_normalization(node: onnx.NodeProto, to: Rewriter) -> None:
    """a·x + b with a = γ/√(σ² + ε) and b = β − a·μ, the running μ and σ², where γ and β are frozen.

    The gradient builder would train it with the statistics of each batch whatever is trained. With γ or β
    trained that is what is wanted, and the node stays.
    """
    if is_trained(node, to.trainable, to.constants_of_model):
        if not to.leads_with_batch(node.input[0]):
            raise untrainable(node, "its first axis is not the batch", "freeze its scale and bias")
        to.copy(node)
        return
    x, gamma, beta, mean, variance = node.input
    epsilon = to.number(attributes_of(node).get("epsilon", 1e-5))
    deviation = to.add("Sqrt", [to.add("Add", [variance, epsilon])])
    factor = to.add("Div", [gamma, deviation])
    offset = to.add("Sub", [beta, to.add("Mul", [mean, factor])])
    inner = len(to.shape(x, node)) - 2
    if inner:
        factor, offset = (to.add("Reshape", [v, to.sizes(-1, *([1] * inner))]) for v in (factor, offset))
    to.add("Add", [to.add("Mul", [x, factor]), offset], node.output[0])


def running_statistics(graph: onnx.GraphProto) -> set[str]:
    """Names of the means and variances that follow the data and are never trained by a gradient."""
    return {
        str(name) for node in graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]
    }


def in_inference_form(graph: onnx.GraphProto) -> list[str]:
    """Undo an export in training mode: one output, computed from the running statistics.

    The names of the nodes that were in training mode are returned.

    Raises
    ------
    BundleError
        When a node reads the new statistics.
    """
    read = {name for node in graph.node for name in node.input}
    turned: list[str] = []
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            continue
        if attributes_of(node).get("training_mode", 0):
            turned.append(str(node.name))
        if not read.isdisjoint(name for name in node.output[1:] if name):
            raise untrainable(node, "its new statistics are read", "export the model in evaluation mode")
        del node.output[1:]
        kept = [item for item in node.attribute if item.name != "training_mode"]
        del node.attribute[:]
        node.attribute.extend(kept)
    return turned


RULES: Mapping[str, Callable[[onnx.NodeProto, Rewriter], None]] = {
    "BatchNormalization": batch_normalization,
}
