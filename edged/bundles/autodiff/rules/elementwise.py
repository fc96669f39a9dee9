"""Arithmetic element by element: ḡ times the slope, summed where an operand was repeated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx
from onnx import TensorProto

from edged.bundles.autodiff.tape import Adjoint, Adjoints, Dims, Tape, backward, broadcast

Slope = Callable[[onnx.NodeProto, Tape], str]


def to_operand(node: onnx.NodeProto, place: int, gradient: Adjoint, t: Tape) -> Adjoint:
    """A gradient that broadcasts to the result, summed to the shape of operand `place`."""
    rank = len(t.dims(node.output[0], node))
    padded = Adjoint(gradient.name, (1,) * (rank - len(gradient.dims)) + gradient.dims)
    return t.summed(padded, node.output[0], node.input[place], node)


def by_slope(*operators: str) -> Callable[[Slope], Slope]:
    """Register the rule ḡ·slope for operators with one input; the slope has the shape of the result."""

    def register(slope: Slope) -> Slope:
        @backward(*operators)
        def rule(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
            return [t.times(gradients[0], slope(node, t), t.dims(node.output[0], node))]

        rule.__doc__ = slope.__doc__
        return slope

    return register


@backward("Add", "Sum")
def add(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of x₁ + x₂ + …: ḡ for each."""
    return [
        to_operand(node, place, gradients[0], t) if t.wants(node, place) else None
        for place in range(len(node.input))
    ]


@backward("Mean")
def mean(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of (x₁ + … + xₙ)/n: ḡ/n for each."""
    return add(node, [t.scaled(gradients[0], 1 / len(node.input))], t)


@backward("Sub")
def sub(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Gradient of a − b: ḡ and −ḡ."""
    first, second = add(node, gradients, t)
    return [first, _negated(second, t)]


def _negated(gradient: Adjoint | None, t: Tape) -> Adjoint | None:
    return None if gradient is None else Adjoint(t.add("Neg", [gradient.name]), gradient.dims)


@backward("Neg")
def neg(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Gradient of −x: ḡ with the other sign."""
    return [_negated(gradients[0], t)]


@backward("Mul")
def mul(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of a·b: ḡ·b and ḡ·a; of a square 2ḡ·a at once."""
    (a, b), gradient = node.input, gradients[0]
    if a == b:
        return [t.times(t.scaled(gradient, 2), a, t.dims(a, node))]
    return [
        to_operand(node, place, t.times(gradient, other, t.dims(other, node)), t)
        if t.wants(node, place)
        else None
        for place, other in enumerate((b, a))
    ]


@backward("Div")
def div(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Gradient of y = a/b: ḡ/b and −ḡ·y/b."""
    b, y = node.input[1], node.output[0]
    quotient = Adjoint(t.add("Div", [gradients[0].name, b]), broadcast(gradients[0].dims, t.dims(b, node)))
    first = to_operand(node, 0, quotient, t) if t.wants(node, 0) else None
    if not t.wants(node, 1):
        return [first]
    return [first, _negated(to_operand(node, 1, t.times(quotient, y, t.dims(y, node)), t), t)]


@backward("Pow")
def power(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of y = aᵇ: ḡ·b·aᵇ⁻¹, and ḡ·y·ln a where a > 0, else 0."""
    (a, b), y, gradient = node.input, node.output[0], gradients[0]
    dims = t.dims(y, node)
    first = second = None
    if t.wants(node, 0):
        first = to_operand(node, 0, t.times(gradient, _slope_of_power(a, b, t), dims), t)
    if t.wants(node, 1):
        positive = t.add("Greater", [a, t.number(0)])
        logarithm = t.add("Log", [t.add("Where", [positive, a, t.number(1)])])
        slope = t.add("Mul", [y, logarithm])
        second = to_operand(node, 1, t.times(gradient, slope, dims), t)
    return [first, second]


def _slope_of_power(a: str, b: str, t: Tape) -> str:
    """b·aᵇ⁻¹, and 0 where b is 0 even if a is 0, too."""
    exponent = t.value(b)
    if exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2:
        return t.add("Mul", [a, t.number(2)])
    if t.kind(b) != TensorProto.FLOAT:
        b = t.add("Cast", [b], to=TensorProto.FLOAT)
    less = t.add("Sub", [b, t.number(1)])
    if exponent is None or not exponent.all():
        less = t.add("Where", [t.add("Equal", [b, t.number(0)]), t.number(0), less])
    return t.add("Mul", [b, t.add("Pow", [a, less])])


@backward("Log")
def log(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Gradient of ln x: ḡ/x."""
    dims = t.dims(node.input[0], node)
    return [Adjoint(t.add("Div", [gradients[0].name, node.input[0]]), dims)]


@by_slope("Exp")
def exp(node: onnx.NodeProto, t: Tape) -> str:
    """Gradient of y = eˣ: ḡ·y."""
    return str(node.output[0])


@by_slope("Abs")
def absolute(node: onnx.NodeProto, t: Tape) -> str:
    """Gradient of |x|: ḡ·sign(x), 0 at 0."""
    return t.add("Sign", [node.input[0]])


@by_slope("Sqrt")
def sqrt(node: onnx.NodeProto, t: Tape) -> str:
    """Gradient of y = √x: ḡ/(2y)."""
    return t.add("Div", [t.number(0.5), node.output[0]])


@by_slope("Reciprocal")
def reciprocal(node: onnx.NodeProto, t: Tape) -> str:
    """Gradient of y = 1/x: −ḡ·y²."""
    y = node.output[0]
    return t.add("Neg", [t.add("Mul", [y, y])])


@by_slope("Erf")
def erf(node: onnx.NodeProto, t: Tape) -> str:
    """Gradient of erf x: ḡ·(2/√π)·exp(−x²)."""
    x = node.input[0]
    bell = t.add("Exp", [t.add("Neg", [t.add("Mul", [x, x])])])
    return t.add("Mul", [bell, t.number(2 / math.sqrt(math.pi))])


@by_slope("Sin")
def sine(node: onnx.NodeProto, t: Tape) -> str:
    """Gradient of sin x: ḡ·cos x."""
    return t.add("Cos", [node.input[0]])


@by_slope("Cos")
def cosine(node: onnx.NodeProto, t: Tape) -> str:
    """Gradient of cos x: −ḡ·sin x."""
    return t.add("Neg", [t.add("Sin", [node.input[0]])])


@backward("Min", "Max")
def extreme(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ, shared equally by the operands that equal the result."""
    y, dims = node.output[0], t.dims(node.output[0], node)
    if len(node.input) == 1:
        return [gradients[0]]
    equal = [t.add("Cast", [t.add("Equal", [name, y])], to=TensorProto.FLOAT) for name in node.input]
    share = t.add("Div", [gradients[0].name, t.add("Sum", equal)])
    return [
        to_operand(node, place, t.times(Adjoint(share, dims), mask, dims), t)
        if t.wants(node, place)
        else None
        for place, mask in enumerate(equal)
    ]


@backward("Clip")
def clip(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of min(max(x, low), high): ḡ for x within the bounds, else for the bound."""
    x, low, high = [*node.input, "", ""][:3]
    dims, found = t.dims(x, node), list[Adjoint | None]([None, None, None])
    bounds = zip(("GreaterOrEqual", "LessOrEqual"), (low, high), strict=True)
    inside = [t.add(operator, [x, bound]) for operator, bound in bounds if bound]
    if t.wants(node, 0) and not inside:
        return [gradients[0]]
    if t.wants(node, 0):
        found[0] = _where(inside[0] if len(inside) == 1 else t.add("And", inside), gradients[0], dims, t)
    if t.wants(node, 1):
        below = t.add("Less", [x, low])
        if high:
            below = t.add("And", [below, t.add("LessOrEqual", [low, high])])
        found[1] = to_operand(node, 1, _where(below, gradients[0], dims, t), t)
    if t.wants(node, 2):
        above = t.add("Greater", [t.add("Max", [x, low]) if low else x, high])
        found[2] = to_operand(node, 2, _where(above, gradients[0], dims, t), t)
    return found


def _where(condition: str, gradient: Adjoint, dims: Dims, t: Tape) -> Adjoint:
    """The adjoint where a condition of these sizes holds, else 0."""
    return t.times(gradient, t.add("Cast", [condition], to=TensorProto.FLOAT), dims)


@backward("Where")
def where(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ for the chosen operand, 0 for the other.

    Chosen and not multiplied, so that ∞ stays out.
    """
    condition, zero = node.input[0], t.number(0)
    name, dims = gradients[0].name, broadcast(gradients[0].dims, t.dims(condition, node))
    found: Adjoints = [None]
    for place, operands in ((1, [condition, name, zero]), (2, [condition, zero, name])):
        wanted = t.wants(node, place)
        found.append(to_operand(node, place, Adjoint(t.add("Where", operands), dims), t) if wanted else None)
    return found


@backward("Identity")
def identity(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Gradient of x itself: ḡ as it is."""
    return [gradients[0]]


@backward("Cast")
def cast(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ in the element type of the input."""
    kind = t.kind(node.input[0])
    if kind == t.kind(node.output[0]):
        return [gradients[0]]
    return [Adjoint(t.add("Cast", [gradients[0].name], to=kind), gradients[0].dims)]


@backward("CumSum")
def cumulative_sum(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """The cumulative sum of ḡ in the other direction."""
    given = {item.name: item.i for item in node.attribute}
    turned = {"reverse": 1 - given.get("reverse", 0), "exclusive": given.get("exclusive", 0)}
    whole = t.whole(gradients[0], node)
    return [Adjoint(t.add("CumSum", [whole, node.input[1]], **turned), t.dims(node.input[0], node))]


@backward("Trilu")
def triangle(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of a triangle of a matrix: the same triangle of ḡ."""
    upper = next((item.i for item in node.attribute if item.name == "upper"), 1)
    inputs = [t.whole(gradients[0], node), *node.input[1:]]
    return [Adjoint(t.add("Trilu", inputs, upper=upper), t.dims(node.input[0], node))]
