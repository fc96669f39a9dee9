"""Splits whose gradient the builder gets wrong."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from edged.bundles.graph.writer import attributes_of, untrainable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from edged.bundles.rewriting.rewriter import Rewriter


def split(node: onnx.NodeProto, to: Rewriter) -> None:
    """As it is where every part is used, else one Slice for each part that is.

    The gradient builder joins the gradients of the used parts alone, which is too short a tensor.
    """
    used = [bool(name) and name in to.read for name in node.output]
    if all(used):
        to.copy(node)
        return
    axis = attributes_of(node).get("axis", 0)
    ends = list(accumulate(_lengths(node, axis, to)))
    for name, wanted, start, end in zip(node.output, used, [0, *ends], ends, strict=False):
        if wanted:
            to.add("Slice", [node.input[0], to.sizes(start), to.sizes(end), to.sizes(axis)], name)


def _lengths(node: onnx.NodeProto, axis: int, to: Rewriter) -> list[int]:
    if len(node.input) > 1 and node.input[1]:
        given = to.value(node.input[1])
        if given is None:
            raise untrainable(node, "the lengths of its parts are computed")
        return [int(length) for length in given]
    total, parts = to.shape(node.input[0], node)[axis], len(node.output)
    if total is None or total % parts:
        raise untrainable(node, "the axis that it splits varies")
    return [total // parts] * parts


RULES: Mapping[str, Callable[[onnx.NodeProto, Rewriter], None]] = {
    "Split": split,
}
