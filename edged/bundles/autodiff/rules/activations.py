"""Activations. Where two pieces meet, the slope is PyTorch's: a layer that begins with zeros learns."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from edged.bundles.autodiff.rules.elementwise import by_slope
from edged.bundles.autodiff.tape import Adjoint, Adjoints, Tape, backward, forward
from edged.bundles.graph.writer import attributes_of

# A slope near the largest float32.
STEEP = 3e38


def _positive(x: str, t: Tape) -> str:
    return t.add("Greater", [x, t.number(0)])


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


@by_slope("HardSigmoid")
def hard_sigmoid(node: onnx.NodeProto, t: Tape) -> str:
    """Of min(1, max(0, αx + β)): αḡ between the bounds, else 0."""
    alpha, y = attributes_of(node).get("alpha", 0.2), node.output[0]
    inside = t.add("And", [_positive(y, t), t.add("Less", [y, t.number(1)])])
    return t.add("Where", [inside, t.number(alpha), t.number(0)])


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
