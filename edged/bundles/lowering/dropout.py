"""Dropout and its gradient, with a mask from the noise of the step (Srivastava et al. 2014)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from onnx import TensorProto

from edged.bundles.graph.writer import Writer, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

# Of the ONNX operator, where no ratio is given.
RATIO = 0.5


def dropout(node: onnx.NodeProto, to: Writer) -> None:
    """x·k with k = 1/(1 − r) where the noise is not below the ratio r, and 0 elsewhere.

    Outside of training, where the third input is left out, it is the identity. The noise belongs to the
    seed and the number of the update, so the same step draws the same mask again.
    """
    x, ratio, training = (*node.input, "", "")[:3]
    if not training:
        to.add("Identity", [x], node.output[0])
        return
    shape = to.shape(x, node)
    row = [size for size in shape[1:] if size is not None]
    if not shape or shape[0] is not None or len(row) != len(shape) - 1:
        raise refusal(node, "its input must be (batch, sizes...), and only the batch may vary")
    noise = to.noise(math.prod(row))
    if len(row) != 1:
        noise = to.add("Reshape", [noise, to.sizes(-1, *row)])
    to.add("Mul", [x, _factor(noise, ratio, node, to)], node.output[0])


def _factor(noise: str, ratio: str, node: onnx.NodeProto, to: Writer) -> str:
    ratio = ratio or to.number(RATIO)
    kept = to.add("Cast", [to.add("GreaterOrEqual", [noise, ratio])], to=TensorProto.FLOAT)
    share = to.add("Sub", [to.number(1), ratio])
    mask = node.output[1] if len(node.output) > 1 else ""
    return to.add("Div", [kept, share], _factor_of(mask) if mask else "")


def _factor_of(mask: str) -> str:
    """The tensor that takes the place of a mask: what every element was multiplied with."""
    return f"{mask}.factor"


def dropout_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ·k with the factors k of the forward pass."""
    to.add("Mul", [node.input[0], _factor_of(node.input[1])], node.output[0])


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "Dropout": dropout,
    "DropoutGrad": dropout_grad,
}
