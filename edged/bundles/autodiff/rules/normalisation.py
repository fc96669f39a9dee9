"""Normalisations of each row by its own mean and deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edged.bundles.autodiff.registry import backward, forward
from edged.bundles.autodiff.tape import Adjoint, untrainable
from edged.bundles.graph.writer import attributes_of

if TYPE_CHECKING:
    import onnx

    from edged.bundles.autodiff.registry import Adjoints
    from edged.bundles.autodiff.tape import Tape


@forward("LayerNormalization")
def layer_norm_forward(node: onnx.NodeProto, t: Tape) -> None:
    """As it is, with mean and inverse deviation kept for the gradient."""
    if node.output[0] not in t.active:
        t.copy(node)
        return
    outputs = [name or t.name("statistic") for name in (*node.output, "", "")[:3]]
    t.saved[node.output[0]] = outputs[1:]
    t.operator("LayerNormalization", list(node.input), outputs, **attributes_of(node))


@backward("LayerNormalization")
def layer_norm(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """Of y = γ·x̂ + β: with g = ḡγ, dx = r·(g − mean g − x̂·mean(g x̂)), dγ = Σ ḡx̂, dβ = Σ ḡ.

    Ba, Kiros and Hinton 2016, section 3: x̂ = (x − μ)·r with r = 1/σ; means over the normalised axes, sums
    over the others.
    """
    if gradients[0] is None or any(gradients[1:]):
        raise untrainable(node, "its mean or deviation is read")
    (x, gamma), (mean, inverse) = node.input[:2], t.saved[node.output[0]]
    dims, gradient = t.dims(x, node), t.whole(gradients[0], node)
    first = attributes_of(node).get("axis", -1) % len(dims)
    normal = t.add("Mul", [t.add("Sub", [x, mean]), inverse])
    found: Adjoints = [None, None, None]
    if t.wants(node, 0):
        inner = list(range(first, len(dims)))
        scaled = t.add("Mul", [gradient, gamma])
        found[0] = Adjoint(_of_input(scaled, normal, inverse, inner, t), dims)
    found[1:] = _of_affine(node, gradient, normal, list(range(first)), t)
    return found


@backward("InstanceNormalization")
def instance_norm(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """As LayerNormalization over all axes behind the channel, γ per channel.

    Ulyanov et al. 2016.
    """
    x, gamma, _ = node.input
    dims, gradient = t.dims(x, node), t.whole(gradients[0], node)
    inner = list(range(2, len(dims)))
    mean = t.add("ReduceMean", [x], axes=inner, keepdims=1)
    centred = t.add("Sub", [x, mean])
    variance = t.add("ReduceMean", [t.add("Mul", [centred, centred])], axes=inner, keepdims=1)
    epsilon = t.number(attributes_of(node).get("epsilon", 1e-5))
    inverse = t.add("Reciprocal", [t.add("Sqrt", [t.add("Add", [variance, epsilon])])])
    normal = t.add("Mul", [centred, inverse])
    found: Adjoints = [None, None, None]
    if t.wants(node, 0):
        value, scaled = t.value(gamma), gradient
        if value is None or (value != 1).any():
            each = t.add("Reshape", [gamma, t.sizes(-1, *(1 for _ in inner))])
            scaled = t.add("Mul", [gradient, each])
        found[0] = Adjoint(_of_input(scaled, normal, inverse, inner, t), dims)
    found[1:] = _of_affine(node, gradient, normal, [0, *inner], t)
    return found


def _of_input(g: str, normal: str, inverse: str, inner: list[int], t: Tape) -> str:
    """r·(g − mean g − x̂·mean(g x̂)), means over the inner axes."""
    average = t.add("ReduceMean", [g], axes=inner, keepdims=1)
    along = t.add("ReduceMean", [t.add("Mul", [g, normal])], axes=inner, keepdims=1)
    centred = t.add("Sub", [t.add("Sub", [g, average]), t.add("Mul", [normal, along])])
    return t.add("Mul", [centred, inverse])


def _of_affine(node: onnx.NodeProto, gradient: str, normal: str, outer: list[int], t: Tape) -> Adjoints:
    """Of γ and β: Σ ḡx̂ and Σ ḡ over the outer axes."""
    found: Adjoints = [None, None]
    for i, place in enumerate((1, 2)):
        if t.wants(node, place):
            each = t.add("Mul", [gradient, normal]) if place == 1 else gradient
            dims = t.dims(node.input[place], node)
            total = t.add("ReduceSum", [each, t.sizes(*outer)], keepdims=0) if outer else each
            found[i] = Adjoint(total, dims)
    return found


@backward("LpNormalization")
def lp_norm(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of y = x/n with n = Σ|x| or √Σx²: (ḡ − s·Σ(ḡ·y))/n with s = sign x or y.

    Sums along an axis; where n is 0, ḡ is divided by 1.
    """
    x, y, given = node.input[0], node.output[0], attributes_of(node)
    axis, gradient = given.get("axis", -1), t.whole(gradients[0], node)
    operator = "ReduceL1" if given.get("p", 2) == 1 else "ReduceL2"
    norm = t.add(operator, [x], axes=[axis], keepdims=1)
    along = t.add("ReduceSum", [t.add("Mul", [gradient, y]), t.sizes(axis)], keepdims=1)
    slope = t.add("Sign", [x]) if operator == "ReduceL1" else y
    rest = t.add("Sub", [gradient, t.add("Mul", [slope, along])])
    safe = t.add("Where", [t.add("Equal", [norm, t.number(0)]), t.number(1), norm])
    return [Adjoint(t.add("Div", [rest, safe]), t.dims(x, node))]
