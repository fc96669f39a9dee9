"""Cuts whose gradient the native engine cannot compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.bundles.graph.writer import untrainable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from edged.bundles.rewriting.rewriter import Rewriter


def cut(node: onnx.NodeProto, to: Rewriter) -> None:
    """As it is, but a way back, with a step below 0, as a Gather of the elements in that order."""
    steps = to.value(node.input[4]) if len(node.input) > 4 else None
    if steps is None or (steps >= 0).all():
        to.copy(node)
        return
    x, shape = node.input[0], to.shape(node.input[0], node)
    bounds = [_known(name, node, to) for name in node.input[1:5]]
    for start, end, axis, step in zip(*bounds, strict=True):
        length = shape[axis]
        if length is None:
            raise untrainable(node, "it goes back along an axis of varying size")
        x = to.add("Gather", [x, to.sizes(*range(length)[start:end:step])], axis=axis)
    to.add("Identity", [x], node.output[0])


def _known(name: str, node: onnx.NodeProto, to: Rewriter) -> list[int]:
    value = to.value(name)
    if value is None:
        raise untrainable(node, "it goes back, and its bounds or axes are not constants")
    return [int(number) for number in value]


RULES: Mapping[str, Callable[[onnx.NodeProto, Rewriter], None]] = {
    "Slice": cut,
}
