"""Activations. Where two pieces meet, the slope is PyTorch's: a layer that begins with zeros learns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto

from edged.bundles.autodiff.registry import backward, forward
from edged.bundles.autodiff.rules.elementwise import by_slope, to_operand
from edged.bundles.autodiff.tape import Adjoint, Tape
from edged.bundles.graph.writer import attributes_of

if TYPE_CHECKING:
    from edged.bundles.autodiff.registry import Adjoints

# A slope near the largest float32.
STEEP = 3e38


def _positive(x: str, t: Tape) -> str:
    return t.add("Greater", [x, t.number(0)])


def _float(condition: str, t: Tape) -> str:
    return t.add("Cast", [condition], to=TensorProto.FLOAT)


@by_slope("Relu")
def relu(node: onnx.NodeProto, t: Tape) -> str:
    """ḡ where y > 0, else 0.

    As ḡ·min(1, y·3e38), which is exact unless y is subnormal.
    The obvious form, Where(y > 0, ḡ, 0), takes two and a half times as long. Where ḡ is infinite and
    y = 0 this one gives NaN, not 0: a step that has overflowed is seen as such.
    """
    return t.add("HardSigmoid", [node.output[0]], alpha=STEEP, beta=0.0)


@by_slope("LeakyRelu")
def leaky_relu(node: onnx.NodeProto, t: Tape) -> str:
    """ḡ where x > 0, else αḡ."""
    alpha = attributes_of(node).get("alpha", 0.01)
    return t.add("Where", [_positive(node.input[0], t), t.number(1), t.number(alpha)])


@by_slope("ThresholdedRelu")
def thresholded_relu(node: onnx.NodeProto, t: Tape) -> str:
    """ḡ where x > α, else 0."""
    alpha = attributes_of(node).get("alpha", 1.0)
    return _float(t.add("Greater", [node.input[0], t.number(alpha)]), t)


@backward("PRelu")
def prelu(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of x where x > 0, else a·x: ḡ, else a·ḡ; for a: 0, else x·ḡ.

    He et al. 2015; the slope a is learned.
    """
    (x, slope), gradient, dims = node.input, gradients[0], t.dims(node.output[0], node)
    positive = _positive(x, t)
    found: Adjoints = [None, None]
    if t.wants(node, 0):
        found[0] = t.times(gradient, t.add("Where", [positive, t.number(1), slope]), dims)
    if t.wants(node, 1):
        low = t.add("Where", [positive, t.number(0), x])
        found[1] = to_operand(node, 1, t.times(gradient, low, dims), t)
    return found


@by_slope("Sigmoid")
def sigmoid(node: onnx.NodeProto, t: Tape) -> str:
    """Of y = 1/(1 + e⁻ˣ): ḡ·y·(1 − y)."""
    y = node.output[0]
    return t.add("Mul", [y, t.add("Sub", [t.number(1), y])])


@by_slope("Tanh")
def tanh(node: onnx.NodeProto, t: Tape) -> str:
    """Of y = tanh x: ḡ·(1 − y²)."""
    y = node.output[0]
    return t.add("Sub", [t.number(1), t.add("Mul", [y, y])])


@forward("Softplus")
def softplus_forward(node: onnx.NodeProto, t: Tape) -> None:
    """log(1 + eˣ) = max(x, 0) + log(1 + exp(−|x|)), which is finite for every x."""
    x = node.input[0]
    rest = t.add("Exp", [t.add("Neg", [t.add("Abs", [x])])])
    t.add("Add", [t.add("Relu", [x]), t.add("Log", [t.add("Add", [rest, t.number(1)])])], node.output[0])


@by_slope("Softplus")
def softplus(node: onnx.NodeProto, t: Tape) -> str:
    """Gradient of log(1 + eˣ): ḡ·σ(x)."""
    return t.add("Sigmoid", [node.input[0]])


@by_slope("Softsign")
def softsign(node: onnx.NodeProto, t: Tape) -> str:
    """Gradient of x/(1 + |x|): ḡ/(1 + |x|)²."""
    below = t.add("Add", [t.add("Abs", [node.input[0]]), t.number(1)])
    return t.add("Reciprocal", [t.add("Mul", [below, below])])


@by_slope("Elu")
def elu(node: onnx.NodeProto, t: Tape) -> str:
    """Of x where x > 0, else y = α·(eˣ − 1): ḡ, else ḡ·(y + α).

    Clevert, Unterthiner and Hochreiter 2016.
    """
    alpha = attributes_of(node).get("alpha", 1.0)
    low = t.add("Add", [node.output[0], t.number(alpha)])
    return t.add("Where", [_positive(node.input[0], t), t.number(1), low])


@by_slope("Selu")
def selu(node: onnx.NodeProto, t: Tape) -> str:
    """Of γ·x where x > 0, else y = γ·α·(eˣ − 1): γ·ḡ, else ḡ·(y + γα).

    Klambauer et al. 2017.
    """
    given = attributes_of(node)
    alpha, gamma = given.get("alpha", 1.6732632423543772), given.get("gamma", 1.0507009873554805)
    low = t.add("Add", [node.output[0], t.number(alpha * gamma)])
    return t.add("Where", [_positive(node.input[0], t), t.number(gamma), low])


@by_slope("Celu")
def celu(node: onnx.NodeProto, t: Tape) -> str:
    """Of x where x > 0, else α·(exp(x/α) − 1): ḡ·exp(min(x, 0)/α).

    Barron 2017.
    """
    alpha = attributes_of(node).get("alpha", 1.0)
    low = t.add("Min", [node.input[0], t.number(0)])
    return t.add("Exp", [t.add("Mul", [low, t.number(1 / alpha)])])


@by_slope("HardSigmoid")
def hard_sigmoid(node: onnx.NodeProto, t: Tape) -> str:
    """Of min(1, max(0, αx + β)): αḡ between the bounds, else 0."""
    alpha, y = attributes_of(node).get("alpha", 0.2), node.output[0]
    inside = t.add("And", [_positive(y, t), t.add("Less", [y, t.number(1)])])
    return t.add("Where", [inside, t.number(alpha), t.number(0)])


@by_slope("HardSwish")
def hard_swish(node: onnx.NodeProto, t: Tape) -> str:
    """Of x·min(1, max(0, x/6 + ½)): ḡ·(x/3 + ½) between −3 and 3; 0 below, ḡ above.

    Howard et al. 2019.
    """
    x = node.input[0]
    line = t.add("Add", [t.add("Mul", [x, t.number(1 / 3)]), t.number(0.5)])
    low = t.add("Where", [t.add("Greater", [x, t.number(-3)]), line, t.number(0)])
    return t.add("Where", [t.add("Less", [x, t.number(3)]), low, t.number(1)])


def _normal_distribution(x: str, t: Tape) -> str:
    """Φ(x) = ½(1 + erf(x/√2))."""
    error = t.add("Erf", [t.add("Mul", [x, t.number(math.sqrt(0.5))])])
    return t.add("Mul", [t.add("Add", [error, t.number(1)]), t.number(0.5)])


@forward("Gelu")
def gelu_forward(node: onnx.NodeProto, t: Tape) -> None:
    """x·Φ(x), the exact form (Hendrycks and Gimpel 2016)."""
    distribution = _normal_distribution(node.input[0], t)
    t.saved[node.output[0]] = distribution
    t.add("Mul", [node.input[0], distribution], node.output[0])


@by_slope("Gelu")
def gelu(node: onnx.NodeProto, t: Tape) -> str:
    """Of x·Φ(x): ḡ·(Φ(x) + x·φ(x)) with φ(x) = exp(−x²/2)/√(2π)."""
    x = node.input[0]
    exponent = t.add("Mul", [t.add("Mul", [x, x]), t.number(-0.5)])
    density = t.add("Mul", [t.add("Exp", [exponent]), t.number(1 / math.sqrt(2 * math.pi))])
    return t.add("Add", [t.saved[node.output[0]], t.add("Mul", [x, density])])


@forward("QuickGelu")
def quick_gelu_forward(node: onnx.NodeProto, t: Tape) -> None:
    """x·σ(αx); with α = 1 it is SiLU, with 1.702 an approximation of GELU."""
    x, alpha = node.input[0], attributes_of(node).get("alpha", 1.702)
    scaled = x if alpha == 1 else t.add("Mul", [x, t.number(alpha)])
    t.saved[node.output[0]] = scaled, t.add("Sigmoid", [scaled])
    t.add("Mul", [x, t.saved[node.output[0]][1]], node.output[0])


@by_slope("QuickGelu")
def quick_gelu(node: onnx.NodeProto, t: Tape) -> str:
    """Of x·s with s = σ(αx): ḡ·s·(1 + αx·(1 − s))."""
    scaled, s = t.saved[node.output[0]]
    rest = t.add("Mul", [scaled, t.add("Sub", [t.number(1), s])])
    return t.add("Mul", [s, t.add("Add", [rest, t.number(1)])])


@backward("Softmax")
def softmax(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of y = softmax x: p − y·Σp with p = ḡ·y, summed along its axis."""
    y = node.output[0]
    product = t.add("Mul", [gradients[0].name, y])
    total = t.add("ReduceSum", [product, t.sizes(attributes_of(node).get("axis", -1))], keepdims=1)
    return [Adjoint(t.add("Sub", [product, t.add("Mul", [y, total])]), t.dims(y, node))]


@backward("LogSoftmax")
def log_softmax(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of y = log softmax x: ḡ − eʸ·Σḡ, summed along its axis."""
    y, gradient = node.output[0], t.whole(gradients[0], node)
    total = t.add("ReduceSum", [gradient, t.sizes(attributes_of(node).get("axis", -1))], keepdims=1)
    return [Adjoint(t.add("Sub", [gradient, t.add("Mul", [t.add("Exp", [y]), total])]), t.dims(y, node))]
