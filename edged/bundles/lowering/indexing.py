"""Gradients of picking and cutting: what was not taken gets 0, what was taken twice the sum.

Source of the semantics: the schemas of these operators in onnxruntime's
`orttraining/core/graph/training_op_defs.cc`. ḡ is the gradient of the forward operator's output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from onnx import TensorProto, numpy_helper

from edged.bundles.graph.writer import Writer, attributes_of, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

_ZERO = numpy_helper.from_array(np.zeros(1, np.float32))


def gather_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ added to zeros where it was taken from.

    One index: ḡ in its place, by a product with a one-hot vector. Several: ScatterND with addition along the
    first axis, to which the picked one is moved; embedding tables have it there already.
    """
    shape, indices, gradient = node.input
    picked = len(to.shape(indices, node))
    rank = len(to.shape(gradient, node)) - picked + 1
    axis = attributes_of(node).get("axis", 0) % rank
    if picked == 0:
        _one_picked(shape, indices, gradient, axis, rank, node.output[0], to)
    elif axis == 0:
        _add_rows(shape, indices, gradient, node.output[0], to)
    else:
        _add_along(shape, indices, gradient, (axis, rank, picked), node.output[0], to)


def _one_picked(shape: str, index: str, gradient: str, axis: int, rank: int, output: str, to: Writer) -> None:
    length = to.add("Slice", [shape, to.sizes(axis), to.sizes(axis + 1)])
    ends = to.constant(np.array([0, 1], np.float32))
    mask = to.add("OneHot", [to.add("Unsqueeze", [index, to.sizes(0)]), length, ends])
    mask = to.add("Reshape", [mask, to.sizes(-1, *[1] * (rank - axis - 1))])
    to.add("Mul", [to.add("Unsqueeze", [gradient, to.sizes(axis)]), mask], output)


def _add_rows(shape: str, indices: str, gradient: str, output: str, to: Writer) -> str:
    zeros = to.add("ConstantOfShape", [shape], value=_ZERO)
    places = to.add("Unsqueeze", [to.add("Cast", [indices], to=TensorProto.INT64), to.sizes(-1)])
    return to.add("ScatterND", [zeros, places, gradient], output, reduction="add")


def _add_along(
    shape: str, indices: str, gradient: str, form: tuple[int, int, int], output: str, to: Writer
) -> None:
    """As `_add_rows` with the axis moved to the front and back; `form` is axis, rank, rank of the indices."""
    axis, rank, picked = form
    front = [*range(axis, axis + picked), *range(axis), *range(axis + picked, rank + picked - 1)]
    order = [axis, *(i for i in range(rank) if i != axis)]
    moved = to.add("Gather", [shape, to.sizes(*order)], axis=0)
    summed = _add_rows(moved, indices, to.add("Transpose", [gradient], perm=front), "", to)
    to.add("Transpose", [summed], output, perm=[int(i) for i in np.argsort(order)])


def gather_elements_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ added to zeros at the places it was taken from, element by element."""
    gradient, shape, indices = node.input
    zeros = to.add("ConstantOfShape", [shape], value=_ZERO)
    axis = attributes_of(node).get("axis", 0)
    to.add("ScatterElements", [zeros, indices, gradient], node.output[0], axis=axis, reduction="add")


def gather_nd_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ added to zeros at the places it was taken from."""
    shape, indices, gradient = node.input
    if attributes_of(node).get("batch_dims", 0):
        raise refusal(node, "batch_dims is not covered")
    zeros = to.add("ConstantOfShape", [shape], value=_ZERO)
    to.add("ScatterND", [zeros, indices, gradient], node.output[0], reduction="add")


class _Cut(NamedTuple):
    """What a Slice takes of an axis: `taken` of its `length` elements."""

    axis: int
    taken: range
    length: int


def slice_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ with zeros in front and behind.

    For steps other than 1, and where bounds or sizes are not known beforehand, ḡ is put into flat zeros at
    the positions that the same Slice takes of the numbers 0, 1, 2, ...
    """
    cuts = _cuts(node, to)
    if cuts is None or any(cut.taken.step != 1 for cut in cuts):
        _scattered(node, to)
        return
    rank = len(to.shape(node.input[0], node))
    pads = [0] * (2 * rank)
    for axis, taken, length in cuts:
        pads[axis], pads[rank + axis] = taken.start, length - taken.stop
    to.add("Pad", [node.input[0], to.sizes(*pads)], node.output[0])


def _scattered(node: onnx.NodeProto, to: Writer) -> None:
    gradient, shape, *bounds = node.input
    total = to.add("ReduceProd", [shape], keepdims=0)
    every = to.add("Range", [to.constant(np.int64(0)), total, to.constant(np.int64(1))])
    taken = to.add("Slice", [to.add("Reshape", [every, shape]), *bounds])
    zeros = to.add("ConstantOfShape", [to.add("Unsqueeze", [total, to.sizes(0)])], value=_ZERO)
    flat = [to.add("Reshape", [name, to.sizes(-1)]) for name in (taken, gradient)]
    to.add("Reshape", [to.add("ScatterElements", [zeros, *flat], axis=0), shape], node.output[0])


def _cuts(node: onnx.NodeProto, to: Writer) -> list[_Cut] | None:
    """The cuts of the axes; None where one is not known beforehand."""
    sizes, bounds = _sizes_of(node.input[1], to), [to.value(name) for name in node.input[2:]]
    if sizes is None or any(value is None for value in bounds):
        return None
    starts, ends, *rest = [[int(number) for number in value] for value in bounds if value is not None]
    axes = [axis % len(sizes) for axis in (rest[0] if rest else range(len(starts)))]
    steps = rest[1] if len(rest) > 1 else [1] * len(axes)
    cuts = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if (length := sizes[axis]) is None:
            return None
        # Python cuts as ONNX does: both clamp what is out of range.
        cuts.append(_Cut(axis, range(length)[start:end:step], length))
    return cuts


def _sizes_of(shape: str, to: Writer) -> tuple[int | None, ...] | None:
    """The sizes that a tensor made by Shape holds; None where it was made otherwise."""
    for node in to.nodes:
        if shape in node.output:
            return to.shape(node.input[0], node) if node.op_type == "Shape" else None
    return None


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "GatherElementsGrad": gather_elements_grad,
    "GatherGrad": gather_grad,
    "GatherNDGrad": gather_nd_grad,
    "SliceGrad": slice_grad,
}
