"""Reductions for which the gradient builder has nothing, or something in one form only.

Definitions as in the ONNX operator specification; axes are attributes in opset 17.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

from edged.bundles.graph.writer import attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from edged.bundles.rewriting.rewriter import Rewriter


def _axes(node: onnx.NodeProto, to: Rewriter) -> list[int]:
    rank = len(to.shape(node.input[0], node))
    return sorted(axis % rank for axis in attributes_of(node).get("axes", range(rank)))


def _kept(node: onnx.NodeProto) -> bool:
    return bool(attributes_of(node).get("keepdims", 1))


def _squeezed(node: onnx.NodeProto, value: str, to: Rewriter) -> None:
    """The value, reduced with its axes kept, as the node's output."""
    if _kept(node):
        to.add("Identity", [value], node.output[0])
    else:
        to.add("Squeeze", [value, to.sizes(*_axes(node, to))], node.output[0])


def extreme(node: onnx.NodeProto, to: Rewriter) -> None:
    """Axis by axis, the element that ArgMax or ArgMin finds: of equal ones the first gets the gradient."""
    find = "ArgMax" if node.op_type == "ReduceMax" else "ArgMin"
    value = node.input[0]
    for axis in _axes(node, to):
        place = to.add(find, [value], axis=axis, keepdims=1)
        value = to.add("GatherElements", [value, place], axis=axis)
    _squeezed(node, value, to)


def squares(node: onnx.NodeProto, to: Rewriter) -> None:
    """Rewrite ReduceSumSquare as Σx²."""
    _summed(node, to.add("Mul", [node.input[0]] * 2), node.output[0], to)


def magnitudes(node: onnx.NodeProto, to: Rewriter) -> None:
    """Rewrite ReduceL1 as Σ|x|."""
    _summed(node, to.add("Abs", [node.input[0]]), node.output[0], to)


def log_sum(node: onnx.NodeProto, to: Rewriter) -> None:
    """The logarithm of Σx."""
    to.add("Log", [_summed(node, node.input[0], "", to)], node.output[0])


def _summed(node: onnx.NodeProto, value: str, output: str, to: Rewriter) -> str:
    axes = to.sizes(*_axes(node, to))
    return to.add("ReduceSum", [value, axes], output, keepdims=int(_kept(node)))


def with_axes_kept(node: onnx.NodeProto, to: Rewriter) -> None:
    """As it is with the axes kept, which the builder's gradient needs, and without them after that."""
    if _kept(node):
        to.copy(node)
        return
    kept = to.name("kept")
    to.copy(
        helper.make_node(node.op_type, [node.input[0]], [kept], name=kept, axes=_axes(node, to), keepdims=1)
    )
    _squeezed(node, kept, to)


RULES: Mapping[str, Callable[[onnx.NodeProto, Rewriter], None]] = {
    "ReduceL1": magnitudes,
    "ReduceL2": with_axes_kept,
    "ReduceLogSum": log_sum,
    "ReduceLogSumExp": with_axes_kept,
    "ReduceMax": extreme,
    "ReduceMin": extreme,
    "ReduceSumSquare": squares,
}
