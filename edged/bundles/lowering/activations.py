"""Gradients of activations.

Notation: ḡ is the gradient that comes in, x the operator's input, y its output. The formulas are the
derivatives of the definitions in the ONNX operator specification; which of x and y a gradient operator
reads is onnxruntime's choice (`orttraining/core/graph/gradient_builder.cc`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from edged.bundles.graph.writer import Writer, attributes_of, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

# A slope near the largest float32.
STEEP = 3e38


def relu_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ where y > 0, else 0: ḡ·min(1, y·3e38), which is exact for every y that is not subnormal.

    The obvious form, Where(y > 0, ḡ, 0), takes two and a half times as long. Where ḡ is infinite and
    y = 0 this one gives NaN, not 0: a step that has overflowed is seen as such.
    """
    gradient, y = node.input
    mask = to.add("HardSigmoid", [y], alpha=STEEP, beta=0.0)
    to.add("Mul", [gradient, mask], node.output[0])


def leaky_relu_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ where y > 0, else αḡ. The output tells the sign of the input only for α > 0."""
    gradient, y = node.input
    alpha = attributes_of(node).get("alpha", 0.01)
    if alpha < 0:
        raise refusal(node, f"alpha is {alpha:g}, it must not be negative")
    positive = to.add("Greater", [y, to.number(0)])
    lessened = to.add("Mul", [gradient, to.number(alpha)])
    to.add("Where", [positive, gradient, lessened], node.output[0])


def sigmoid_grad(node: onnx.NodeProto, to: Writer) -> None:
    """Gradient of Sigmoid: ḡ·y·(1 − y)."""
    gradient, y = node.input
    slope = to.add("Mul", [y, to.add("Sub", [to.number(1), y])])
    to.add("Mul", [gradient, slope], node.output[0])


def tanh_grad(node: onnx.NodeProto, to: Writer) -> None:
    """Gradient of Tanh: ḡ·(1 − y²)."""
    gradient, y = node.input
    slope = to.add("Sub", [to.number(1), to.add("Mul", [y, y])])
    to.add("Mul", [gradient, slope], node.output[0])


def _normal_distribution(x: str, to: Writer) -> str:
    """Φ(x) = ½(1 + erf(x/√2))."""
    error = to.add("Erf", [to.add("Mul", [x, to.number(math.sqrt(0.5))])])
    return to.add("Mul", [to.add("Add", [error, to.number(1)]), to.number(0.5)])


def gelu(node: onnx.NodeProto, to: Writer) -> None:
    """x·Φ(x), the exact form (Hendrycks and Gimpel 2016), into which onnxruntime fuses an exported GELU."""
    x = node.input[0]
    to.add("Mul", [x, _normal_distribution(x, to)], node.output[0])


def gelu_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ·(Φ(x) + x·φ(x)) with φ(x) = exp(−x²/2)/√(2π)."""
    gradient, x = node.input
    exponent = to.add("Mul", [to.add("Mul", [x, x]), to.number(-0.5)])
    density = to.add("Mul", [to.add("Exp", [exponent]), to.number(1 / math.sqrt(2 * math.pi))])
    slope = to.add("Add", [_normal_distribution(x, to), to.add("Mul", [x, density])])
    to.add("Mul", [gradient, slope], node.output[0])


def _quick(node: onnx.NodeProto, x: str, to: Writer) -> tuple[str, str]:
    """αx and s = σ(αx)."""
    alpha = attributes_of(node).get("alpha", 1.702)
    scaled = x if alpha == 1 else to.add("Mul", [x, to.number(alpha)])
    return scaled, to.add("Sigmoid", [scaled])


def quick_gelu(node: onnx.NodeProto, to: Writer) -> None:
    """x·σ(αx); with α = 1 it is SiLU, with 1.702 an approximation of GELU."""
    x = node.input[0]
    to.add("Mul", [x, _quick(node, x, to)[1]], node.output[0])


def quick_gelu_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ·s·(1 + αx·(1 − s)) with s = σ(αx)."""
    gradient, x = node.input
    scaled, s = _quick(node, x, to)
    rest = to.add("Mul", [scaled, to.add("Sub", [to.number(1), s])])
    slope = to.add("Mul", [s, to.add("Add", [rest, to.number(1)])])
    to.add("Mul", [gradient, slope], node.output[0])


def softmax_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ∘y − y·Σ(ḡ∘y), the sum along the axis of the softmax."""
    gradient, y = node.input
    product = to.add("Mul", [gradient, y])
    total = to.add("ReduceSum", [product, to.sizes(attributes_of(node).get("axis", -1))], keepdims=1)
    to.add("Sub", [product, to.add("Mul", [y, total])], node.output[0])


def log_softmax_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ − exp(y)·Σḡ, the sum along the axis of the softmax."""
    gradient, y = node.input
    total = to.add("ReduceSum", [gradient, to.sizes(attributes_of(node).get("axis", -1))], keepdims=1)
    to.add("Sub", [gradient, to.add("Mul", [to.add("Exp", [y]), total])], node.output[0])


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "ReluGrad": relu_grad,
    "LeakyReluGrad": leaky_relu_grad,
    "SigmoidGrad": sigmoid_grad,
    "TanhGrad": tanh_grad,
    "Gelu": gelu,
    "GeluGrad": gelu_grad,
    "QuickGelu": quick_gelu,
    "QuickGeluGrad": quick_gelu_grad,
    "SoftmaxGrad_13": softmax_grad,
    "LogSoftmaxGrad_13": log_softmax_grad,
}
