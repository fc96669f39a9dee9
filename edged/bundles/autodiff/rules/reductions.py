"""Sums, means, norms and extremes along axes. The adjoint stays as small as the result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
from onnx import TensorProto

from edged.bundles.autodiff.tape import Adjoint, Adjoints, Tape, backward
from edged.bundles.graph.writer import attributes_of, untrainable


def axes_of(node: onnx.NodeProto, t: Tape) -> list[int]:
    """The axes that a reduction sums along; all of them where none is given."""
    rank, given = len(t.dims(node.input[0], node)), attributes_of(node)
    axes: Sequence[int] = []
    if len(node.input) > 1 and node.input[1]:
        axes = t.integers(node.input[1], node, "axes")
    elif given.get("noop_with_empty_axes", 0):
        raise untrainable(
            node, "runtimes differ in what it does without axes", "give it axes, or leave it out"
        )
    if not axes and not given.get("noop_with_empty_axes", 0):
        axes = range(rank)
    return sorted(axis % rank for axis in axes)


def _kept(node: onnx.NodeProto, name: str, dims: Sequence[int | str], t: Tape) -> Adjoint:
    """A tensor of the result's shape with the axes that were summed along, each of size 1."""
    axes = axes_of(node, t)
    if attributes_of(node).get("keepdims", 1) or not axes:
        return Adjoint(name, tuple(dims))
    wide = list(dims)
    for axis in axes:
        wide.insert(axis, 1)
    return Adjoint(t.add("Unsqueeze", [name, t.sizes(*axes)]), tuple(wide))


def _gradient(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoint:
    return _kept(node, gradients[0].name, gradients[0].dims, t)


def _result(node: onnx.NodeProto, t: Tape) -> str:
    return _kept(node, node.output[0], t.dims(node.output[0], node), t).name


@backward("ReduceSum")
def total(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Gradient of Σx: ḡ for every summand."""
    return [_gradient(node, gradients, t)]


@backward("ReduceMean")
def mean(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Gradient of Σx/n: ḡ/n for every summand."""
    return [_shared(_gradient(node, gradients, t), node, axes_of(node, t), t)]


@backward("GlobalAveragePool")
def global_average(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of the mean over everything behind the channel: ḡ/n."""
    return [_shared(gradients[0], node, list(range(2, len(gradients[0].dims))), t)]


def _shared(gradient: Adjoint, node: onnx.NodeProto, axes: list[int], t: Tape) -> Adjoint:
    dims = t.dims(node.input[0], node)
    sizes = [dims[axis] for axis in axes]
    if all(isinstance(size, int) for size in sizes):
        return t.scaled(gradient, 1 / math.prod(size for size in sizes if isinstance(size, int)))
    return Adjoint(t.add("Div", [gradient.name, t.count(node.input[0], axes, node)]), gradient.dims)


@backward("ReduceMax", "ReduceMin")
def extreme(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ, shared equally by the elements that equal the result."""
    return [_to_equal(node, _result(node, t), _gradient(node, gradients, t), t.sizes(*axes_of(node, t)), t)]


@backward("GlobalMaxPool")
def global_max(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ, shared equally by the largest elements."""
    axes = t.sizes(*range(2, len(t.dims(node.input[0], node))))
    return [_to_equal(node, node.output[0], gradients[0], axes, t)]


def _to_equal(node: onnx.NodeProto, y: str, gradient: Adjoint, axes: str, t: Tape) -> Adjoint:
    x = node.input[0]
    mask = t.add("Cast", [t.add("Equal", [x, y])], to=TensorProto.FLOAT)
    number = t.add("ReduceSum", [mask, axes], keepdims=1)
    share = Adjoint(t.add("Div", [gradient.name, number]), gradient.dims)
    return t.times(share, mask, t.dims(x, node))


@backward("ReduceL2")
def euclidean_norm(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of y = √Σx²: ḡ·x/y, and 0 where y is 0."""
    x, y, gradient = node.input[0], _result(node, t), _gradient(node, gradients, t)
    zero = t.add("Equal", [y, t.number(0)])
    inverse = t.add("Where", [zero, t.number(0), t.add("Reciprocal", [y])])
    return [t.times(t.times(gradient, inverse, gradient.dims), x, t.dims(x, node))]
