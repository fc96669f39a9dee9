"""Joining, splitting and cutting: forward operators that training replaces, and their gradients.

Source of the semantics: the schemas in onnxruntime's `orttraining/core/graph/training_op_defs.cc`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from edged.artifacts.lowering.writer import Writer, attributes_of, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx


def concat_training(node: onnx.NodeProto, to: Writer) -> None:
    """Concat; the second output holds the length of every part along the axis."""
    axis = attributes_of(node)["axis"]
    to.add("Concat", list(node.input), node.output[0], axis=axis)
    if len(node.output) > 1 and node.output[1]:
        lengths = []
        for name in node.input:
            shape = to.shape(name, node)
            length = shape[axis % len(shape)]
            if length is None:
                raise refusal(node, f"{name!r} is joined along an axis of varying size")
            lengths.append(length)
        to.add("Identity", [to.sizes(*lengths)], node.output[1])


def split_training(node: onnx.NodeProto, to: Writer) -> None:
    """Split into the given lengths."""
    to.keep(
        helper.make_node(
            "Split", list(node.input), list(node.output), name=node.name, axis=attributes_of(node)["axis"]
        )
    )


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "ConcatTraining": concat_training,
    "SplitTraining": split_training,
}
