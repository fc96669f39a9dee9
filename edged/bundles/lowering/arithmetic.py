"""Products, quotients and scalings that onnxruntime's gradient builder writes in operators of its own.

Source of the semantics: `orttraining/core/graph/gradient_builder.cc` and the schemas in
`orttraining/core/graph/training_op_defs.cc`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, numpy_helper

from edged.bundles.graph.writer import Writer, attributes_of, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx


def scale(node: onnx.NodeProto, to: Writer) -> None:
    """x·s, or x/s with `scale_down`; s is often the number of elements, an integer."""
    x, factor = node.input
    number = to.add("Cast", [factor], to=TensorProto.FLOAT)
    operator = "Div" if attributes_of(node).get("scale_down", 0) else "Mul"
    to.add(operator, [x, number], node.output[0])


def fused_matmul(node: onnx.NodeProto, to: Writer) -> None:
    """α·MatMul(A, B) with the last two axes of A or B exchanged where it is asked for."""
    attributes = attributes_of(node)
    if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        raise refusal(node, "it moves the batch axis")
    a, b = (
        _transposed(name, node, to) if attributes.get(key, 0) else name
        for name, key in zip(node.input, ("transA", "transB"), strict=True)
    )
    alpha = attributes.get("alpha", 1.0)
    if alpha == 1:
        to.add("MatMul", [a, b], node.output[0])
    else:
        to.add("Mul", [to.add("MatMul", [a, b]), to.number(alpha)], node.output[0])


def _transposed(name: str, node: onnx.NodeProto, to: Writer) -> str:
    rank = len(to.shape(name, node))
    order = [*range(rank - 2), rank - 1, rank - 2] if rank > 1 else [0]
    return to.add("Transpose", [name], perm=order)


def div_grad(node: onnx.NodeProto, to: Writer) -> None:
    """Of a/b: ḡ/b and −ḡ·a/b², each summed over the axes along which the operand was repeated."""
    gradient, a, b = node.input
    shapes = to.shape(a, node), to.shape(b, node)
    quotient = to.add("Div", [gradient, b])
    if node.output[0]:
        _reduced(node, quotient, shapes[0], shapes[1], node.output[0], to)
    if len(node.output) > 1 and node.output[1]:
        each = to.add("Neg", [to.add("Div", [to.add("Mul", [quotient, a]), b])])
        _reduced(node, each, shapes[1], shapes[0], node.output[1], to)


def _reduced(
    node: onnx.NodeProto,
    value: str,
    own: tuple[int | None, ...],
    other: tuple[int | None, ...],
    output: str,
    to: Writer,
) -> None:
    """The value summed down from the broadcast shape to the operand's own."""
    rank = max(len(own), len(other))
    padded, against = ((1,) * (rank - len(s)) + s for s in (own, other))
    missing = rank - len(own)
    axes = [i for i in range(rank) if i < missing or (padded[i] == 1 and against[i] != 1)]
    if not axes:
        to.add("Identity", [value], output)
        return
    if missing and any(i >= missing for i in axes):
        kept = to.add("ReduceSum", [value, to.sizes(*axes)], keepdims=1)
        if None in own:
            raise refusal(node, "an operand is repeated along a batch of varying size")
        to.add("Reshape", [kept, to.sizes(*(size or 1 for size in own))], output)
        return
    to.add("ReduceSum", [value, to.sizes(*axes)], output, keepdims=0 if missing else 1)


def broadcast_gradient_args(node: onnx.NodeProto, to: Writer) -> None:
    """For the shapes of two operands, the axes along which each of them was repeated.

    An operand was repeated where it has size 1 and the other has not; shapes are aligned at their ends.
    Axes in front of an operand's own need no mention where its size there is 1 too.
    """
    ranks = [to.add("Size", [shape]) for shape in node.input]
    rank = to.add("Max", ranks)
    one = to.constant(np.int64(1))
    single = [
        to.add("Equal", [_aligned(shape, own, rank, to), one])
        for shape, own in zip(node.input, ranks, strict=True)
    ]
    for output, own, other in zip(node.output, single, reversed(single), strict=False):
        if output:
            repeated = to.add("And", [own, to.add("Not", [other])])
            to.add("Reshape", [to.add("NonZero", [repeated]), to.sizes(-1)], output)


def _aligned(shape: str, own: str, rank: str, to: Writer) -> str:
    missing = to.add("Unsqueeze", [to.add("Sub", [rank, own]), to.sizes(0)])
    ones = numpy_helper.from_array(np.ones(1, np.int64))
    return to.add("Concat", [to.add("ConstantOfShape", [missing], value=ones), shape], axis=0)


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "BroadcastGradientArgs": broadcast_gradient_args,
    "Scale": scale,
    "FusedMatMul": fused_matmul,
    "DivGrad": div_grad,
}
