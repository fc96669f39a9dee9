"""Picking and placing: what was not taken gets 0, what was taken several times the sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

from edged.bundles.autodiff.registry import backward
from edged.bundles.autodiff.tape import Adjoint, untrainable
from edged.bundles.graph.writer import attributes_of

if TYPE_CHECKING:
    import onnx

    from edged.bundles.autodiff.registry import Adjoints
    from edged.bundles.autodiff.tape import Dims, Tape


@backward("Gather")
def gather(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ added to zeros where it was taken from.

    One index: ḡ in its place, by a product with a one-hot vector. Each index once: a Gather with the inverse
    order. Others: ScatterND with addition along the first axis, to which the picked one is moved.
    """
    x, indices = node.input
    dims, picked = t.dims(x, node), len(t.dims(indices, node))
    axis, known = attributes_of(node).get("axis", 0) % len(dims), t.value(indices)
    gradient, length = t.whole(gradients[0], node), dims[axis]
    if picked == 0 and isinstance(length, int):
        name = _one_picked(gradient, indices, axis, dims, t)
    elif isinstance(length, int) and known is not None and _is_order(known, length):
        inverse = np.argsort(known % length)
        name = t.add("Gather", [gradient, t.constant(inverse.astype(np.int64))], axis=axis)
    elif axis == 0:
        name = _add_rows(indices, gradient, t.shape_of(x, node), t)
    else:
        name = _add_along(indices, gradient, t.shape_of(x, node), (axis, len(dims), picked), t)
    return [Adjoint(name, dims)]


def _is_order(indices: np.ndarray, length: int) -> bool:
    return indices.shape == (length,) and len(set((indices % length).tolist())) == length


def _one_picked(gradient: str, index: str, axis: int, dims: Dims, t: Tape) -> str:
    after = [1] * (len(dims) - axis - 1)
    ends, size = t.constant(np.array([0, 1], np.float32)), t.constant(np.int64(dims[axis]))
    if t.kind(index) != TensorProto.INT64:
        index = t.add("Cast", [index], to=TensorProto.INT64)
    mask = t.add("OneHot", [t.add("Unsqueeze", [index, t.sizes(0)]), size, ends])
    mask = t.add("Reshape", [mask, t.sizes(-1, *after)])
    return t.add("Mul", [t.add("Unsqueeze", [gradient, t.sizes(axis)]), mask])


def _add_rows(indices: str, gradient: str, shape: str, t: Tape) -> str:
    places = t.add("Unsqueeze", [t.add("Cast", [indices], to=TensorProto.INT64), t.sizes(-1)])
    return t.add("ScatterND", [t.add("ConstantOfShape", [shape]), places, gradient], reduction="add")


def _add_along(indices: str, gradient: str, shape: str, form: tuple[int, int, int], t: Tape) -> str:
    """As `_add_rows` with the axis moved to the front and back; `form` is axis, rank, rank of the indices."""
    axis, rank, picked = form
    front = [*range(axis, axis + picked), *range(axis), *range(axis + picked, rank + picked - 1)]
    order = [axis, *(i for i in range(rank) if i != axis)]
    moved = t.add("Gather", [shape, t.sizes(*order)], axis=0)
    summed = _add_rows(indices, t.add("Transpose", [gradient], perm=front), moved, t)
    return t.add("Transpose", [summed], perm=[int(i) for i in np.argsort(order)])


@backward("GatherElements")
def gather_elements(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ added to zeros at each element it was taken from."""
    return [_scattered(node, gradients[0], node.input[1], attributes_of(node).get("axis", 0), t)]


@backward("TopK")
def largest(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """ḡ at the positions of the k values; the indices have no gradient."""
    if gradients[0] is None:
        return [None]
    places = node.output[1] or _places(node, t)
    return [_scattered(node, gradients[0], places, attributes_of(node).get("axis", -1), t)]


def _places(node: onnx.NodeProto, t: Tape) -> str:
    names = [t.name("values"), t.name("places")]
    t.operator("TopK", list(node.input), names, **attributes_of(node))
    return names[1]


def _scattered(node: onnx.NodeProto, gradient: Adjoint, places: str, axis: int, t: Tape) -> Adjoint:
    inputs = [t.zeros(node.input[0], node), places, t.whole(gradient, node)]
    name = t.add("ScatterElements", inputs, axis=axis, reduction="add")
    return Adjoint(name, t.dims(node.input[0], node))


@backward("GatherND")
def gather_nd(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ added to zeros at the places it was taken from."""
    if attributes_of(node).get("batch_dims", 0):
        raise untrainable(node, "its batch_dims is not 0")
    x, places = node.input
    inputs = [t.zeros(x, node), places, t.whole(gradients[0], node)]
    return [Adjoint(t.add("ScatterND", inputs, reduction="add"), t.dims(x, node))]


@backward("ScatterElements")
def scatter_elements(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """For the updates: ḡ at their positions; for the data: ḡ, 0 where replaced."""
    given, places = attributes_of(node), node.input[1]
    gradient, axis = t.whole(gradients[0], node), given.get("axis", 0)
    found, kind = list[Adjoint | None]([None, None, None]), _kind(node)
    if t.wants(node, 0):
        name = gradient
        if kind == "none":
            nothing = t.zeros(node.input[2], node)
            name = t.add("ScatterElements", [gradient, places, nothing], axis=axis)
        found[0] = Adjoint(name, t.dims(node.input[0], node))
    if t.wants(node, 2):
        name = t.add("GatherElements", [gradient, places], axis=axis)
        found[2] = Adjoint(name, t.dims(node.input[2], node))
    return found


@backward("ScatterND")
def scatter_nd(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """For the updates: ḡ at their positions; for the data: ḡ, 0 where replaced."""
    places, gradient = node.input[1], t.whole(gradients[0], node)
    found, kind = list[Adjoint | None]([None, None, None]), _kind(node)
    if t.wants(node, 0):
        name = gradient
        if kind == "none":
            name = t.add("ScatterND", [gradient, places, t.zeros(node.input[2], node)])
        found[0] = Adjoint(name, t.dims(node.input[0], node))
    if t.wants(node, 2):
        found[2] = Adjoint(t.add("GatherND", [gradient, places]), t.dims(node.input[2], node))
    return found


def _kind(node: onnx.NodeProto) -> str:
    kind = str(attributes_of(node).get("reduction", "none"))
    if kind not in ("none", "add"):
        raise untrainable(node, f"its reduction is {kind}")
    return kind
