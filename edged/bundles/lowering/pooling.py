"""Gradients of pooling, and of making a grid finer.

Notation: ḡ `(N, C, out...)` is the gradient that comes in, x `(N, C, sizes...)` the input. Definitions: ONNX
operator specification, MaxPool, AveragePool and Resize. onnxruntime writes the gradients of pooling in the
default domain, where they have no schema; what they read is in its
`orttraining/core/graph/gradient_builder.cc`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto, helper

from edged.bundles.graph.writer import Shape, Writer, attributes_of, refusal
from edged.bundles.lowering.reorder import POOLED
from edged.bundles.lowering.windows import Windows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx

# How a fine grid can be laid over a coarse one so that output i is copied from input i // factor.
_COPIES = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}


def max_pool(node: onnx.NodeProto, to: Writer) -> None:
    """The maximum of every window, and where it was, for the gradient.

    onnxruntime looks for positions in windows of two rows and two columns by comparing one value after the
    other, which a processor cannot foresee. The larger of two rows, whole rows at a time, takes half the
    time; then one dimension is left. Of equal values in a window the first column's first counts.
    """
    if len(node.output) < 2 or not node.output[1]:
        to.copy(node)
        return
    shape = to.shape(node.input[0], node)
    windows = _known_windows(node, shape)
    # Where the model itself asks for positions, they must be what the operator gives.
    made = node.output[1] == f"{node.output[0].removesuffix(POOLED)}_mask"
    if windows is not None and made and _by_rows(windows):
        _pooled_by_rows(node, windows, shape, to)
    else:
        to.copy(node)


def _known_windows(node: onnx.NodeProto, shape: Shape) -> Windows | None:
    """Where the windows lie; None where it takes more than their attributes to tell."""
    given = attributes_of(node)
    plain = not given.get("ceil_mode", 0) and given.get("auto_pad", "NOTSET") == "NOTSET"
    return _windows(node, shape) if plain and None not in shape[2:] else None


def _by_rows(windows: Windows) -> bool:
    whole = windows.strides == windows.kernel and not any(windows.rest)
    return whole and _apart(windows) and windows.rank == 2 and windows.kernel[0] == 2


def _pooled_by_rows(node: onnx.NodeProto, windows: Windows, shape: Shape, to: Writer) -> None:
    channels, (height, width), across = shape[1] or 0, windows.out, windows.kernel[1:]
    pairs = to.add("Reshape", [node.input[0], to.sizes(-1, 2, windows.sizes[1])])
    upper, lower = to.name("upper"), to.name("lower")
    to.copy(helper.make_node("Split", [pairs], [upper, lower], name=upper, axis=1))
    to.add("Greater", [lower, upper], _lower_wins(node.output[1]))
    larger = to.add("Max", [upper, lower])
    rows = to.add("Reshape", [larger, to.sizes(-1, channels * height, windows.sizes[1])])
    highest = to.name("maxpool")
    outputs = [highest, node.output[1]]
    to.copy(helper.make_node("MaxPool", [rows], outputs, name=highest, kernel_shape=across, strides=across))
    to.add("Reshape", [highest, to.sizes(-1, channels, height, width)], node.output[0])


def _lower_wins(positions: str) -> str:
    return f"{positions}.lower"


def _back_by_rows(node: onnx.NodeProto, windows: Windows, shape: Shape, to: Writer) -> None:
    (gradient, positions), across = node.input, windows.kernel[1:]
    rows = to.add("Reshape", [gradient, to.sizes(-1, (shape[1] or 0) * windows.out[0], windows.out[1])])
    spread = to.add("MaxUnpool", [rows, positions], kernel_shape=across, strides=across)
    larger = to.add("Reshape", [spread, to.sizes(-1, 1, windows.sizes[1])])
    mask = to.add("Cast", [_lower_wins(positions)], to=TensorProto.FLOAT)
    lower = to.add("Mul", [larger, mask])
    upper = to.add("Sub", [larger, lower])
    _like_input(to.add("Concat", [upper, lower], axis=1), shape, node.output[0], to)


def max_pool_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ at the position of every window's maximum, added up where windows share one.

    The forward operator gives the positions, counted through batch, channels and axes alike, which is
    how MaxUnpool and ScatterElements on the flat tensor take them.
    """
    gradient, positions = node.input
    shape = to.shape(node.output[0], node)
    if attributes_of(node).get("storage_order", 0):
        raise refusal(node, "storage_order is 1")
    if to.wrote(_lower_wins(positions)):
        _back_by_rows(node, _windows(node, shape), shape, to)
    elif (windows := _known_windows(node, shape)) is not None and _apart(windows):
        whole = [_shape_of_input(gradient, shape, to)] if any(windows.rest) else []
        across = {"kernel_shape": windows.kernel, "strides": windows.strides}
        to.add("MaxUnpool", [gradient, positions, *whole], node.output[0], **across)
    else:
        zeros = to.add("ConstantOfShape", [_shape_of_input(gradient, shape, to)])
        parts = [to.add("Reshape", [name, to.sizes(-1)]) for name in (zeros, positions, gradient)]
        flat = to.add("ScatterElements", parts, axis=0, reduction="add")
        _like_input(flat, shape, node.output[0], to)


def _apart(windows: Windows) -> bool:
    """Whether windows are side by side, none reaching beyond the input."""
    return windows.disjoint and not windows.padded and set(windows.dilations) == {1}


def _shape_of_input(gradient: str, shape: Shape, to: Writer) -> str:
    """The shape of x as a tensor; only its batch varies."""
    batch = to.add("Slice", [to.add("Shape", [gradient]), to.sizes(0), to.sizes(1)])
    return to.add("Concat", [batch, to.sizes(*(size or 0 for size in shape[1:]))], axis=0)


def average_pool_grad(node: onnx.NodeProto, to: Writer) -> None:
    """ḡ divided by the number of values in its window, at every position of it, added up.

    That is the transposed convolution with a filter of ones, every channel for itself; where windows
    neither overlap nor leave anything out, it is a mere repetition.
    """
    gradient, output = node.input[0], node.output[0]
    shape = to.shape(output, node)
    windows = _windows(node, shape)
    inside = not attributes_of(node).get("count_include_pad", 0)
    share = to.add("Div", [gradient, to.constant(_counts(windows) if inside else np.float32(windows.area))])
    if windows.strides == windows.kernel and not windows.padded and not any(windows.rest):
        _repeated(share, windows, shape, output, to)
    else:
        _spread(share, windows, shape, output, to)


def _counts(windows: Windows) -> np.ndarray:
    """How many values of the input every window covers; `(1, 1, out...)`, or one number for all."""
    counts = np.ones(windows.out, np.float32)
    for axis, size in enumerate(windows.sizes):
        starts = np.arange(windows.out[axis]) * windows.strides[axis] - windows.begin[axis]
        ends = np.minimum(starts + windows.kernel[axis], size)
        along = np.expand_dims(ends - np.maximum(starts, 0), [i for i in range(windows.rank) if i != axis])
        counts = counts * along.astype(np.float32)
    return np.float32(windows.area) if (counts == windows.area).all() else counts[np.newaxis, np.newaxis]


def _repeated(share: str, windows: Windows, shape: Shape, output: str, to: Writer) -> None:
    between = to.add("Unsqueeze", [share, to.sizes(*(3 + 2 * i for i in range(windows.rank)))])
    times = [size for k in windows.kernel for size in (1, k)]
    _like_input(to.add("Expand", [between, to.sizes(1, 1, *times)]), shape, output, to)


def _spread(share: str, windows: Windows, shape: Shape, output: str, to: Writer) -> None:
    # One axis more in one dimension, as for convolutions.
    lead, one = ([0], [1]) if windows.rank == 1 else ([], [])
    alone = to.add("Reshape", [share, to.sizes(-1, 1, *one, *windows.out)])
    ones = to.constant(np.ones((1, 1, *one, *windows.kernel), np.float32))
    spread = to.add(
        "ConvTranspose",
        [alone, ones],
        strides=[*one, *windows.strides],
        pads=[*lead, *windows.begin, *lead, *windows.end],
        output_padding=[*lead, *windows.rest],
    )
    _like_input(spread, shape, output, to)


def resize_grad(node: onnx.NodeProto, to: Writer) -> None:
    """Of nearest by whole factors: ḡ summed over the copies of each value, area·AveragePool(ḡ)."""
    gradient, x = node.input[:2]
    given = attributes_of(node)
    grid = given.get("coordinate_transformation_mode", "half_pixel")
    rounding = given.get("nearest_mode", "round_prefer_floor")
    if given.get("mode", "nearest") != "nearest" or (grid, rounding) not in _COPIES:
        raise refusal(node, "only nearest, asymmetric with floor or half_pixel, is covered")
    coarse, fine = to.shape(x, node), to.shape(gradient, node)
    factors = [(f or 0) // (c or 1) for c, f in zip(coarse[2:], fine[2:], strict=True)]
    exact = all(c is not None and c * k == f for c, f, k in zip(coarse[2:], fine[2:], factors, strict=True))
    if not exact or coarse[1] != fine[1]:
        raise refusal(node, "only whole factors along the axes behind the channels are covered")
    mean = to.add("AveragePool", [gradient], kernel_shape=factors, strides=factors)
    to.add("Mul", [mean, to.number(math.prod(factors))], node.output[0])


def _windows(node: onnx.NodeProto, shape: Shape) -> Windows:
    return Windows.of(node, shape[2:], tuple(attributes_of(node)["kernel_shape"]))


def _like_input(values: str, shape: Shape, output: str, to: Writer) -> None:
    to.add("Reshape", [values, to.sizes(-1, *(size or 0 for size in shape[1:]))], output)


RULES: Mapping[str, Callable[[onnx.NodeProto, Writer], None]] = {
    "MaxPool": max_pool,
    "MaxPoolGrad": max_pool_grad,
    "AveragePoolGrad": average_pool_grad,
    "ResizeGrad": resize_grad,
}
