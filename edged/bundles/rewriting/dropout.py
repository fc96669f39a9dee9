"""Dropout: active in training when the model was exported so, the identity everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
from onnx import helper

from edged.bundles.graph.edit import consumed
from edged.bundles.graph.writer import untrainable
from edged.bundles.rewriting.rewriter import constants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from edged.bundles.rewriting.rewriter import Rewriter


def dropout(node: onnx.NodeProto, to: Rewriter) -> None:
    """As it is, on rows of numbers, one row for each sample, and with the mask as an output.

    The masks of a batch come from noise that has one row for each sample. Where the tensor has another
    form, as in a recurrent network, it is brought to that one and back.
    """
    x, row = node.input[0], to.elements_of_row(node.input[0])
    _check_ratio(node, to)
    if row is None:
        raise untrainable(node, "what it is applied to does not grow with the batch")
    if to.leads_with_batch(x):
        _write(node, x, node.output[0], to)
        return
    flat, kept = to.add("Reshape", [x, to.sizes(-1, row)]), to.name("dropped")
    _write(node, flat, kept, to)
    to.add("Reshape", [kept, to.add("Shape", [x])], node.output[0])


def _write(node: onnx.NodeProto, x: str, output: str, to: Rewriter) -> None:
    outputs = [output, to.name("mask")]
    to.copy(helper.make_node("Dropout", [x, *node.input[1:]], outputs, name=node.name))


def _check_ratio(node: onnx.NodeProto, to: Rewriter) -> None:
    if node.input[1]:
        ratio = to.value(node.input[1])
        if ratio is None or not 0 <= float(ratio) < 1:
            raise untrainable(node, "its ratio must be a number from 0 to less than 1")


def without_inactive(graph: onnx.GraphProto) -> None:
    """Turn every Dropout that is not in training mode into the identity.

    Raises
    ------
    BundleError
        When a mask is read, or it is computed whether the node is in training mode.
    """
    values = constants(graph)
    for node in _dropouts(graph):
        mode = node.input[2] if len(node.input) > 2 else ""
        if any(name in consumed(graph) for name in node.output[1:] if name):
            raise untrainable(node, "its mask is read")
        if mode and mode not in values:
            raise untrainable(node, "it is computed whether it is in training mode")
        del node.output[1:]
        if not mode or not values[mode]:
            _become_identity(node)


def inference_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model without dropout."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in _dropouts(made.graph):
        _become_identity(node)
    return made


def _dropouts(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == "Dropout"]


def _become_identity(node: onnx.NodeProto) -> None:
    node.op_type = "Identity"
    del node.input[1:], node.output[1:], node.attribute[:]


RULES: Mapping[str, Callable[[onnx.NodeProto, Rewriter], None]] = {
    "Dropout": dropout,
}
