"""Batch normalisation and dropout as exporters leave them, in training mode or not, and for inference."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import onnx

from edged.bundles.autodiff.shapes import constants
from edged.bundles.graph.edit import consumed
from edged.bundles.graph.writer import attributes_of, untrainable


def running_statistics(graph: onnx.GraphProto) -> set[str]:
    """Names of the means and variances that follow the data and are never trained by a gradient."""
    return {
        str(name) for node in graph.node if node.op_type == "BatchNormalization" for name in node.input[3:5]
    }


def in_inference_form(graph: onnx.GraphProto) -> list[str]:
    """Undo an export in training mode: one output, computed from the running statistics.

    The names of the nodes that were in training mode are returned.

    Raises BundleError when a node reads the new statistics.
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


def without_inactive(graph: onnx.GraphProto) -> None:
    """Turn every Dropout that is not in training mode into the identity.

    Raises BundleError when a mask is read, a ratio is out of range, or it is computed whether the node is in
    training mode.
    """
    values = constants(graph)
    for node in _dropouts(graph):
        mode = node.input[2] if len(node.input) > 2 else ""
        if any(name in consumed(graph) for name in node.output[1:] if name):
            raise untrainable(node, "its mask is read")
        if mode and mode not in values:
            raise untrainable(node, "it is computed whether it is in training mode")
        ratio = values.get(node.input[1]) if len(node.input) > 1 else None
        if ratio is not None and not 0 <= float(ratio) < 1:
            raise untrainable(node, "its ratio must be a number from 0 to less than 1")
        del node.output[1:]
        if not mode or not values[mode]:
            _become_identity(node)


def inference_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model without dropout."""
    made = copy.deepcopy(model)
    for node in _dropouts(made.graph):
        _become_identity(node)
    return made


def _dropouts(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == "Dropout"]


def _become_identity(node: onnx.NodeProto) -> None:
    node.op_type = "Identity"
    del node.input[1:], node.output[1:], node.attribute[:]
