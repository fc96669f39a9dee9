"""Shapes and places: reshaping, joining, cutting, gathering and scattering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from edged.bundles.autodiff.tape import Adjoint, Adjoints, Dims, Tape, backward
from edged.bundles.graph.writer import attributes_of, untrainable


@backward("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ in the shape of the input."""
    x = node.input[0]
    return [Adjoint(t.like(t.whole(gradients[0], node), x, node), t.dims(x, node))]


@backward("Transpose")
def transpose(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ with the axes exchanged back."""
    gradient = gradients[0]
    order = attributes_of(node).get("perm", list(reversed(range(len(gradient.dims)))))
    back = [int(i) for i in np.argsort(order)]
    return [Adjoint(t.add("Transpose", [gradient.name], perm=back), tuple(gradient.dims[i] for i in back))]


@backward("Concat")
def concat(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """The part of ḡ that belongs to each input."""
    axis = attributes_of(node)["axis"] % len(gradients[0].dims)
    shapes = [t.dims(name, node) for name in node.input]
    lengths = [shape[axis] for shape in shapes]
    names, fixed = [t.name("part") for _ in lengths], [size for size in lengths if isinstance(size, int)]
    if len(fixed) == len(lengths):
        sizes = t.sizes(*fixed)
    else:
        each = [t.add("Shape", [name], start=axis, end=axis + 1) for name in node.input]
        sizes = t.add("Concat", each, axis=0) if len(each) > 1 else each[0]
    t.operator("Split", [t.whole(gradients[0], node), sizes], names, axis=axis)
    return [Adjoint(name, shape) for name, shape in zip(names, shapes, strict=True)]


@backward("Split")
def split(node: onnx.NodeProto, gradients: Sequence[Adjoint | None], t: Tape) -> Adjoints:
    """The parts of ḡ joined, with zeros for those that nothing reads."""
    parts = [
        t.zeros(name, node) if gradient is None else t.full(gradient, name, node)
        for gradient, name in zip(gradients, node.output, strict=True)
    ]
    return [
        Adjoint(t.add("Concat", parts, axis=attributes_of(node).get("axis", 0)), t.dims(node.input[0], node))
    ]


@backward("Slice")
def cut(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ padded with zeros; for steps other than 1, added to zeros where it was taken from."""
    dims, left = t.dims(node.input[0], node), t.dims(node.output[0], node)
    starts, ends, given, steps = (
        t.integers(name, node, "bounds, axes and steps") if name else []
        for name in [*node.input[1:], "", ""][:4]
    )
    axes = [axis % len(dims) for axis in given or range(len(starts))]
    gradient, pads = t.whole(gradients[0], node), [0] * (2 * len(dims))
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(axes), strict=True):
        length = dims[axis]
        if step == 1 and left[axis] == length:
            continue
        if not isinstance(length, int):
            raise untrainable(node, "it cuts along the batch")
        # Python cuts as ONNX does: both clamp what is out of range.
        taken = range(length)[start:end:step]
        if step == 1:
            pads[axis], pads[len(dims) + axis] = taken.start, length - taken.stop
        else:
            gradient = _spread(gradient, taken, length, axis, len(dims), t)
    name = t.add("Pad", [gradient, t.sizes(*pads)]) if any(pads) else gradient
    return [Adjoint(name, dims)]


def _spread(gradient: str, taken: range, length: int, axis: int, rank: int, t: Tape) -> str:
    """Along one axis ḡ where it was taken from, 0 elsewhere: a Gather of ḡ and a zero behind it."""
    if len(taken) == length:
        return t.add("Gather", [gradient, t.sizes(*np.argsort(list(taken)).tolist())], axis=axis)
    behind = [0] * (2 * rank)
    behind[rank + axis] = 1
    padded = t.add("Pad", [gradient, t.sizes(*behind)])
    places = np.full(length, len(taken), np.int64)
    places[list(taken)] = range(len(taken))
    return t.add("Gather", [padded, t.constant(places)], axis=axis)


@backward("Pad")
def pad(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """The part of ḡ that the input fills, plus ḡ of where the padding repeats it."""
    if t.wants(node, 2):
        raise untrainable(node, "the number that it fills with is computed")
    dims = t.dims(node.input[0], node)
    mode, gradient = attributes_of(node).get("mode", "constant"), t.whole(gradients[0], node)
    amounts = _amounts(node, len(dims), t)
    if min(amounts) < 0:
        if mode != "constant":
            raise untrainable(node, f"it cuts, with mode {mode}")
        return [Adjoint(t.add("Pad", [gradient, t.sizes(*(-amount for amount in amounts))]), dims)]
    changed = [i for i in range(len(dims)) if amounts[i] or amounts[len(dims) + i]]
    for axis in changed:
        length, front, back = dims[axis], amounts[axis], amounts[len(dims) + axis]
        if not isinstance(length, int):
            raise untrainable(node, "it pads the batch")
        if mode == "constant":
            bounds = [t.sizes(number) for number in (front, front + length, axis)]
            gradient = t.add("Slice", [gradient, *bounds])
        else:
            origin = np.pad(np.arange(length), (front, back), mode=mode)
            gradient = _folded(gradient, origin, axis, len(dims), t)
    return [Adjoint(gradient, dims)]


def _amounts(node: onnx.NodeProto, rank: int, t: Tape) -> list[int]:
    """Padding before every axis, then behind every axis."""
    given = t.integers(node.input[1], node, "amounts of padding")
    if len(node.input) < 4 or not node.input[3]:
        return given
    whole = np.zeros((2, rank), np.int64)
    whole[:, [axis % rank for axis in t.integers(node.input[3], node, "axes")]] = np.reshape(given, (2, -1))
    return [int(amount) for amount in whole.ravel()]


def _folded(gradient: str, origin: np.ndarray, axis: int, rank: int, t: Tape) -> str:
    """Along one axis the sum of what came from each place: a product with a matrix of zeros and ones."""
    matrix = np.equal.outer(np.arange(origin.max() + 1), origin)
    return t.along(matrix.astype(np.float32), gradient, axis, rank)


@backward("Expand")
def expand(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ summed over the axes along which the input was repeated."""
    return [t.summed(gradients[0], node.output[0], node.input[0], node)]


@backward("Tile")
def tile(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ summed over the copies."""
    dims = t.dims(node.input[0], node)
    times = t.integers(node.input[1], node, "repeats")
    sizes: list[int] = []
    for size, copies in zip(dims, times, strict=True):
        sizes += [copies, -1 if isinstance(size, str) else size]
    if sizes.count(-1) > 1:
        raise untrainable(node, "more than one axis varies with the batch")
    parted = t.add("Reshape", [t.whole(gradients[0], node), t.sizes(*sizes)])
    axes = t.sizes(*range(0, len(sizes), 2))
    return [Adjoint(t.add("ReduceSum", [parted, axes], keepdims=0), dims)]


@backward("DepthToSpace", "SpaceToDepth")
def blocks(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Of values moved between channels and space: ḡ moved back."""
    given, x = attributes_of(node), node.input[0]
    gradient, size = t.whole(gradients[0], node), given["blocksize"]
    if node.op_type == "SpaceToDepth":
        name = t.add("DepthToSpace", [gradient], blocksize=size, mode="DCR")
    elif given.get("mode", "DCR") == "DCR":
        name = t.add("SpaceToDepth", [gradient], blocksize=size)
    else:
        _, channels, height, width = t.dims(x, node)
        if isinstance(channels, str) or isinstance(height, str) or isinstance(width, str):
            raise untrainable(node, "its sizes vary")
        parted = t.add("Reshape", [gradient, t.sizes(-1, channels // size**2, height, size, width, size)])
        name = t.like(t.add("Transpose", [parted], perm=[0, 1, 3, 5, 2, 4]), x, node)
    return [Adjoint(name, t.dims(x, node))]


@backward("Gather")
def gather(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ added to zeros where it was taken from.

    One index: ḡ in its place, by a product with a one-hot vector. Others: ScatterND with addition along the
    first axis, to which the picked one is moved.
    """
    x, indices = node.input
    dims, picked = t.dims(x, node), len(t.dims(indices, node))
    axis = attributes_of(node).get("axis", 0) % len(dims)
    gradient, length = t.whole(gradients[0], node), dims[axis]
    if picked == 0 and isinstance(length, int):
        name = _one_picked(gradient, indices, axis, dims, t)
    elif axis == 0:
        name = _add_rows(indices, gradient, t.shape_of(x, node), t)
    else:
        name = _add_along(indices, gradient, t.shape_of(x, node), (axis, len(dims), picked), t)
    return [Adjoint(name, dims)]


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
