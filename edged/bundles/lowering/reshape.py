"""Joining, splitting and cutting: forward operators that training replaces, and their gradients.

Source of the semantics: the schemas in onnxruntime's `orttraining/core/graph/training_op_defs.cc`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from edged.bundles.graph.writer import Writer, attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx


def concat_training(node: onnx.NodeProto, to: Writer) -> None:
    """Concat; the second output holds the length of every part along the axis."""
    axis = attributes_of(node)["axis"]
    to.add("Concat", list(node.input), node.output[0], axis=axis)
    if len(node.output) > 1 and node.output[1]:
        lengths = [_length(name, axis, to) for name in node.input]
        to.add("Concat", lengths, node.output[1], axis=0)


def _length(name: str, axis: int, to: Writer) -> str:
    if axis == -1:
        return to.add("Shape", [name], start=axis)
    return to.add("Shape", [name], start=axis, end=axis + 1)


def split_training(node: onnx.NodeProto, to: Writer) -> None:
    """Split into the given lengths."""
    to.copy(
        helper.make_node(
            "Split", list(node.input), list(node.output), name=node.name, axis=attributes_of(node)["axis"]
        )
    )


def trilu(node: onnx.NodeProto, to: Writer) -> None:
    """Trilu, which the training build writes in a domain of its own."""
    to.add("Trilu", list(node.input), node.output[0], upper=attributes_of(node).get("upper", 1))


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "ConcatTraining": concat_training,
    "SplitTraining": split_training,
    "Trilu": trilu,
}
