"""Models that are not what the offline phase takes: with a loss in them already, or made for training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edged.bundles.graph.edit import CONTRIB_DOMAIN, shape_of
from edged.errors import BundleError

if TYPE_CHECKING:
    import onnx

_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
_APPLIED = {"cross_entropy": ("Softmax",), "bce_with_logits": ("Sigmoid", "Softmax")}


def refuse_finished(graph: onnx.GraphProto) -> None:
    """Raise BundleError for a graph that has a loss already, or gradients.

    A loss is an operator that is one, or an output of a single number where there is more than one input.
    """
    for node in graph.node:
        if node.domain == CONTRIB_DOMAIN and node.op_type.endswith(("Grad", "Accumulator", "AccumulatorV2")):
            raise BundleError("this is a training graph: it has gradients", where=f"node {node.name}",
                              remedy="give the network that it was made from")  # fmt: skip
        if node.op_type in _LOSSES:
            where, said = f"node {node.name}", f"operator {node.op_type}"
            raise _with_loss(where, said, f"export the network up to {_prediction(graph, node)!r}")
    if len(graph.input) > 1:
        for value in graph.output:
            sizes = shape_of(value)
            if value.type.tensor_type.HasField("shape") and sizes in ([], [1]):
                raise _with_loss(str(value.name), "a single number", "export the network without it")


def _with_loss(where: str, said: str, remedy: str) -> BundleError:
    what = f"the model ends in a loss already: {said}"
    return BundleError(what, where=where, remedy=f"{remedy}; --loss puts the loss behind it")


def _prediction(graph: onnx.GraphProto, loss: onnx.NodeProto) -> str:
    """The tensor that the loss judges; of a likelihood, what its LogSoftmax reads."""
    name = str(loss.input[0])
    before = next((node for node in graph.node if name in node.output), None)
    return str(before.input[0]) if before is not None and before.op_type == "LogSoftmax" else name


def warn_about_probabilities(graph: onnx.GraphProto, loss: str, add_note: Callable[[str], None]) -> None:
    """Tell when the network ends in what the loss applies itself: it takes logits."""
    last = next((node for node in graph.node if graph.output[0].name in node.output), None)
    if last is not None and last.op_type in _APPLIED.get(loss, ()):
        add_note(f"node {last.name}: the network ends in {last.op_type}, which {loss} applies itself:"
             " it learns slowly so; export it without")  # fmt: skip
