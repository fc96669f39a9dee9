"""Operators element by element that the gradient builder does not know, or only without broadcasting."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from edged.bundles.rewriting.rewriter import Rewriter


def where(node: onnx.NodeProto, to: Rewriter) -> None:
    """As it is, with both operands brought to the shape of the result before.

    The builder does not sum the gradient of an operand over the axes along which it is repeated.
    """
    condition, *operands = node.input
    shape = to.add("Shape", [to.add("Where", list(node.input))])
    full = [name if to.value(name) is not None else to.add("Expand", [name, shape]) for name in operands]
    to.add("Where", [condition, *full], node.output[0])


def add_up(node: onnx.NodeProto, to: Rewriter) -> None:
    """x₁ + x₂ + …, two at a time."""
    to.add("Identity", [_total(node, to)], node.output[0])


def mean(node: onnx.NodeProto, to: Rewriter) -> None:
    """(x₁ + x₂ + …)/n."""
    to.add("Mul", [_total(node, to), to.number(1 / len(node.input))], node.output[0])


def _total(node: onnx.NodeProto, to: Rewriter) -> str:
    total = str(node.input[0])
    for name in node.input[1:]:
        total = to.add("Add", [total, name])
    return total


RULES: Mapping[str, Callable[[onnx.NodeProto, Rewriter], None]] = {
    "Mean": mean,
    "Sum": add_up,
    "Where": where,
}
