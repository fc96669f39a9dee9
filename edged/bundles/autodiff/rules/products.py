"""Matrix products and Einsum. Transposing is left to Gemm wherever one operand is a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from edged.bundles.autodiff.tape import Adjoint, Adjoints, Dims, Tape, backward, broadcast
from edged.bundles.graph.writer import attributes_of, untrainable


@backward("Gemm")
def gemm(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of α·A′B′ + β·C, transposed or not: dA′ = α·ḡB′ᵀ, dB′ = α·A′ᵀḡ, dC = β·ḡ."""
    given, (a, b) = attributes_of(node), node.input[:2]
    first, second = given.get("transA", 0), given.get("transB", 0)
    alpha = {"alpha": alpha} if (alpha := given.get("alpha", 1.0)) != 1 else {}
    found: Adjoints = [None, None, None]
    if t.wants(node, 2):
        bias = _to_bias(node, gradients[0], t)
        found[2] = t.scaled(bias, given.get("beta", 1.0))
    if not (t.wants(node, 0) or t.wants(node, 1)):
        return found
    g = t.whole(gradients[0], node)
    if t.wants(node, 1):
        pair, turned = ([g, a], (1, first)) if second else ([a, g], (1 - first, 0))
        found[1] = Adjoint(_gemm(pair, turned, alpha, t), t.dims(b, node))
    if t.wants(node, 0):
        pair, turned = ([b, g], (second, 1)) if first else ([g, b], (0, 1 - second))
        found[0] = Adjoint(_gemm(pair, turned, alpha, t), t.dims(a, node))
    return found


def _gemm(pair: list[str], turned: tuple[int, int], alpha: dict[str, Any], t: Tape) -> str:
    pairs = zip(("transA", "transB"), turned, strict=True)
    given: dict[str, Any] = {name: 1 for name, wanted in pairs if wanted}
    return t.add("Gemm", pair, **given, **alpha)


def _to_bias(node: onnx.NodeProto, gradient: Adjoint, t: Tape) -> Adjoint:
    return t.summed(gradient, node.output[0], node.input[2], node)


@backward("MatMul")
def matmul(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of A·B: ḡ·Bᵀ and Aᵀ·ḡ, summed over broadcast axes.

    A matrix on the right takes the rows of all axes in one product.
    """
    shapes = t.dims(node.input[0], node), t.dims(node.input[1], node)
    gradient = t.whole(gradients[0], node)
    if len(shapes[0]) == 1 or len(shapes[1]) == 1:
        return _with_vector(node, shapes, gradient, t)
    if len(shapes[1]) == 2 and not any(isinstance(size, str) for size in shapes[1]):
        return _with_matrix(node, shapes, gradient, t)
    return _product(node, list(node.input), shapes, gradient, t)


def _with_matrix(node: onnx.NodeProto, shapes: tuple[Dims, Dims], gradient: str, t: Tape) -> Adjoints:
    (a, b), (left, right) = node.input, shapes
    flat, found = len(left) > 2, list[Adjoint | None]([None, None])
    rows = t.add("Reshape", [gradient, _rows_of(right[1], t)]) if flat else gradient
    if t.wants(node, 1):
        values = t.add("Reshape", [a, _rows_of(right[0], t)]) if flat else a
        found[1] = Adjoint(t.add("Gemm", [values, rows], transA=1), right)
    if t.wants(node, 0):
        values = t.add("Gemm", [rows, b], transB=1)
        found[0] = Adjoint(t.like(values, a, node) if flat else values, left)
    return found


def _rows_of(width: int | str, t: Tape) -> str:
    return t.sizes(-1, int(width))


def _with_vector(node: onnx.NodeProto, shapes: tuple[Dims, Dims], gradient: str, t: Tape) -> Adjoints:
    """A vector is a matrix of one row or column, whose axis the result does not have."""
    names, dims = list(node.input), list(shapes)
    vectors = [place for place in (0, 1) if len(dims[place]) == 1]
    for place in vectors:
        names[place] = t.add("Unsqueeze", [names[place], t.sizes(place)])
        dims[place] = (1, *dims[place]) if place == 0 else (*dims[place], 1)
    gradient = t.add("Unsqueeze", [gradient, t.sizes(*(place - 2 for place in vectors))])
    found = _product(node, names, (dims[0], dims[1]), gradient, t)
    for place, axis in ((0, -2), (1, -1)):
        part = found[place]
        if part is not None and len(shapes[place]) == 1:
            found[place] = Adjoint(t.add("Squeeze", [part.name, t.sizes(axis)]), shapes[place])
    return found


def _product(
    node: onnx.NodeProto, names: list[str], shapes: tuple[Dims, Dims], gradient: str, t: Tape
) -> Adjoints:
    """Of a product of stacks of matrices, by the names and sizes of its operands."""
    (a, b), (left, right) = names, shapes
    lead, found = broadcast(left[:-2], right[:-2]), list[Adjoint | None]([None, None])
    if t.wants(node, 0):
        made = t.add("MatMul", [gradient, _transposed(b, len(right), t)])
        found[0] = _summed(Adjoint(made, (*lead, *left[-2:])), left, t)
    if t.wants(node, 1):
        made = t.add("MatMul", [_transposed(a, len(left), t), gradient])
        found[1] = _summed(Adjoint(made, (*lead, *right[-2:])), right, t)
    return found


def _summed(gradient: Adjoint, own: Dims, t: Tape) -> Adjoint:
    """Summed over the leading axes along which a stack of matrices was repeated."""
    lead = len(gradient.dims) - len(own)
    axes = [i for i, size in enumerate(gradient.dims) if size != 1 and (i < lead or own[i - lead] == 1)]
    name = t.add("ReduceSum", [gradient.name, t.sizes(*axes)], keepdims=1) if axes else gradient.name
    if lead:
        name = t.add("Squeeze", [name, t.sizes(*range(lead))])
    return Adjoint(name, own)


def _transposed(name: str, rank: int, t: Tape) -> str:
    return t.add("Transpose", [name], perm=[*range(rank - 2), rank - 1, rank - 2])


@backward("Einsum")
def einsum(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """The same sum with ḡ for the operand, and the operand's letters for the result's.

    A letter that only the operand has was summed: along it the adjoint is the same everywhere.
    """
    left, arrow, right = attributes_of(node)["equation"].replace(" ", "").partition("->")
    letters = left.split(",")
    if "." in left or not arrow or any(len(set(part)) < len(part) for part in letters):
        raise untrainable(node, "its equation has '...', no '->', or a letter twice in an operand")
    sizes: dict[str, set[int | str]] = {}
    for name, own in zip(node.input, letters, strict=True):
        for letter, size in zip(own, t.dims(name, node), strict=True):
            sizes.setdefault(letter, set()).add(size)
    if any(len(each) > 1 for each in sizes.values()):
        raise untrainable(node, "a size of 1 stands for a larger one")
    gradient, found = t.whole(gradients[0], node), list[Adjoint | None]([None] * len(letters))
    for place, own in enumerate(letters):
        if not t.wants(node, place):
            continue
        others = [i for i in range(len(letters)) if i != place]
        there = set(right).union(*(letters[i] for i in others))
        kept = "".join(letter for letter in own if letter in there)
        equation = f"{','.join([right, *(letters[i] for i in others)])}->{kept}"
        name = t.add("Einsum", [gradient, *(node.input[i] for i in others)], equation=equation)
        dims = t.dims(node.input[place], node)
        if alone := [i for i, letter in enumerate(own) if letter not in there]:
            name = t.add("Unsqueeze", [name, t.sizes(*alone)])
            dims = tuple(1 if i in alone else size for i, size in enumerate(dims))
        found[place] = Adjoint(name, dims)
    return found
