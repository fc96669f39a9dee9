"""Activations for which the gradient builder has nothing, in operators for which it has.

Definitions as in the ONNX operator specification. Every piece comes from one mask, so that the slope
where two pieces meet is PyTorch's: a network whose layer begins with zeros learns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.bundles.graph.writer import attributes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

    from edged.bundles.rewriting.rewriter import Rewriter


def _positive(x: str, to: Rewriter) -> str:
    return to.add("Greater", [x, to.number(0)])


def _exponential(x: str, positive: str, to: Rewriter) -> str:
    """exp(x) − 1 where x ≤ 0, and 0 elsewhere, never the exponential of a large number."""
    low = to.add("Where", [positive, to.number(0), x])
    return to.add("Sub", [to.add("Exp", [low]), to.number(1)])


def elu(node: onnx.NodeProto, to: Rewriter) -> None:
    """Identity where x > 0, else α·(exp(x) − 1) (Clevert, Unterthiner and Hochreiter 2016)."""
    x, alpha = node.input[0], attributes_of(node).get("alpha", 1.0)
    positive = _positive(x, to)
    low = to.add("Mul", [_exponential(x, positive, to), to.number(alpha)])
    to.add("Where", [positive, x, low], node.output[0])


def selu(node: onnx.NodeProto, to: Rewriter) -> None:
    """γ·x where x > 0, else γ·α·(exp(x) − 1) (Klambauer et al. 2017)."""
    x, given = node.input[0], attributes_of(node)
    positive = _positive(x, to)
    alpha, gamma = given.get("alpha", 1.6732632423543772), given.get("gamma", 1.0507009873554805)
    low = to.add("Mul", [_exponential(x, positive, to), to.number(alpha)])
    to.add("Mul", [to.add("Where", [positive, x, low]), to.number(gamma)], node.output[0])


def celu(node: onnx.NodeProto, to: Rewriter) -> None:
    """Identity where x > 0, else α·(exp(x/α) − 1) (Barron 2017)."""
    x, alpha = node.input[0], attributes_of(node).get("alpha", 1.0)
    positive = _positive(x, to)
    scaled = to.add("Mul", [x, to.number(1 / alpha)])
    low = to.add("Mul", [_exponential(scaled, positive, to), to.number(alpha)])
    to.add("Where", [positive, x, low], node.output[0])


def prelu(node: onnx.NodeProto, to: Rewriter) -> None:
    """Identity where x > 0, else a·x with a learned slope a (He et al. 2015)."""
    x, slope = node.input
    to.add("Where", [_positive(x, to), x, to.add("Mul", [x, slope])], node.output[0])


def thresholded_relu(node: onnx.NodeProto, to: Rewriter) -> None:
    """Identity where x > α, else 0."""
    x, alpha = node.input[0], attributes_of(node).get("alpha", 1.0)
    above = to.add("Greater", [x, to.number(alpha)])
    to.add("Where", [above, x, to.number(0)], node.output[0])


def _clipped_line(x: str, slope: float, offset: float, to: Rewriter, output: str = "") -> str:
    line = to.add("Add", [to.add("Mul", [x, to.number(slope)]), to.number(offset)])
    return to.add("Clip", [line, to.number(0), to.number(1)], output)


def hard_sigmoid(node: onnx.NodeProto, to: Rewriter) -> None:
    """αx + β, no less than 0 and no more than 1."""
    given = attributes_of(node)
    _clipped_line(node.input[0], given.get("alpha", 0.2), given.get("beta", 0.5), to, node.output[0])


def hard_swish(node: onnx.NodeProto, to: Rewriter) -> None:
    """x·(x/6 + ½), the factor no less than 0 and no more than 1 (Howard et al. 2019)."""
    x = node.input[0]
    to.add("Mul", [x, _clipped_line(x, 1 / 6, 0.5, to)], node.output[0])


def softplus(node: onnx.NodeProto, to: Rewriter) -> None:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(−|x|)), which is finite for every x."""
    x = node.input[0]
    positive = to.add("GreaterOrEqual", [x, to.number(0)])
    above = to.add("Where", [positive, x, to.number(0)])
    below = to.add("Where", [positive, to.add("Neg", [x]), x])
    rest = to.add("Log", [to.add("Add", [to.add("Exp", [below]), to.number(1)])])
    to.add("Add", [above, rest], node.output[0])


def softsign(node: onnx.NodeProto, to: Rewriter) -> None:
    """Rewrite Softsign as x/(1 + |x|)."""
    x = node.input[0]
    to.add("Div", [x, to.add("Add", [to.add("Abs", [x]), to.number(1)])], node.output[0])


RULES: Mapping[str, Callable[[onnx.NodeProto, Rewriter], None]] = {
    "Celu": celu,
    "Elu": elu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "PRelu": prelu,
    "Selu": selu,
    "Softplus": softplus,
    "Softsign": softsign,
    "ThresholdedRelu": thresholded_relu,
}
