"""Pooling, and resizing by whole factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from edged.bundles.autodiff.rules.windows import Windows
from edged.bundles.autodiff.tape import Adjoint, Adjoints, Dims, Tape, backward, forward
from edged.bundles.graph.writer import attributes_of, untrainable


@forward("MaxPool")
def max_pool_forward(node: onnx.NodeProto, t: Tape) -> None:
    """The maximum of every window, and where it was, for the gradient.

    onnxruntime looks for positions in windows of two rows and two columns by comparing one value after the
    other, which a processor cannot foresee. The larger of two rows, whole rows at a time, takes half the
    time; then one dimension is left. Of equal values in a window the first column's first counts.
    """
    x, y = node.input[0], node.output[0]
    if y not in t.active:
        t.copy(node)
        return
    windows = _windows(node, t.dims(x, node))
    asked = len(node.output) > 1 and node.output[1]
    if not asked and _by_rows(windows):
        t.saved[y] = _pooled_by_rows(node, windows, t.dims(x, node), t)
        return
    positions = asked or t.name("positions")
    t.operator("MaxPool", [x], [y, positions], **attributes_of(node))
    t.saved[y] = positions, ""


def _by_rows(windows: Windows) -> bool:
    whole = windows.strides == windows.kernel and not any(windows.remainder)
    return whole and _apart(windows) and windows.rank == 2 and windows.kernel[0] == 2


def _pooled_by_rows(node: onnx.NodeProto, windows: Windows, dims: Dims, to: Tape) -> tuple[str, str]:
    """Write the pooling; the positions in the larger rows, and where the lower row is the larger one."""
    channels, (height, width), across = int(dims[1]), windows.out, windows.kernel[1:]
    pairs = to.add("Reshape", [node.input[0], to.sizes(-1, 2, windows.sizes[1])])
    upper, lower = to.name("upper"), to.name("lower")
    to.operator("Split", [pairs], [upper, lower], axis=1, num_outputs=2)
    wins = to.add("Greater", [lower, upper])
    larger = to.add("Max", [upper, lower])
    rows = to.add("Reshape", [larger, to.sizes(-1, channels * height, windows.sizes[1])])
    highest, positions = to.name("maxpool"), to.name("positions")
    to.operator("MaxPool", [rows], [highest, positions], kernel_shape=across, strides=across)
    to.add("Reshape", [highest, to.sizes(-1, channels, height, width)], node.output[0])
    return positions, wins


def _back_by_rows(gradient: str, saved: tuple[str, str], windows: Windows, dims: Dims, to: Tape) -> str:
    (positions, wins), across = saved, windows.kernel[1:]
    rows = to.add("Reshape", [gradient, to.sizes(-1, int(dims[1]) * windows.out[0], windows.out[1])])
    spread = to.add("MaxUnpool", [rows, positions], kernel_shape=across, strides=across)
    larger = to.add("Reshape", [spread, to.sizes(-1, 1, windows.sizes[1])])
    mask = to.add("Cast", [wins], to=TensorProto.FLOAT)
    lower = to.add("Mul", [larger, mask])
    upper = to.add("Sub", [larger, lower])
    return to.add("Concat", [upper, lower], axis=1)


@backward("MaxPool")
def max_pool(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ at the position of each window's maximum, added up where windows share it.

    The forward operator gives the positions, counted through batch, channels and axes alike, which is
    how MaxUnpool and ScatterElements on the flat tensor take them.
    """
    x, gradient = node.input[0], t.whole(gradients[0], node)
    if attributes_of(node).get("storage_order", 0):
        raise untrainable(node, "its storage_order is 1")
    dims, (positions, wins) = t.dims(x, node), t.saved[node.output[0]]
    windows = _windows(node, dims)
    if wins:
        name = t.like(_back_by_rows(gradient, (positions, wins), windows, dims, t), x, node)
    elif _apart(windows):
        whole = [t.shape_of(x, node)] if any(windows.remainder) else []
        inputs = [gradient, positions, *whole]
        name = t.add("MaxUnpool", inputs, kernel_shape=windows.kernel, strides=windows.strides)
    else:
        parts = [t.add("Reshape", [part, t.sizes(-1)]) for part in (t.zeros(x, node), positions, gradient)]
        name = t.like(t.add("ScatterElements", parts, axis=0, reduction="add"), x, node)
    return [Adjoint(name, dims)]


def _apart(windows: Windows) -> bool:
    """Whether windows are side by side, none reaching beyond the input."""
    return windows.disjoint and not windows.padded and set(windows.dilations) == {1}


@backward("AveragePool")
def average_pool(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ over the size of its window, added up at each position.

    That is the transposed convolution with a filter of ones, every channel for itself.
    """
    x, dims, given = node.input[0], t.dims(node.input[0], node), attributes_of(node)
    windows, padding_counts = _windows(node, dims), given.get("count_include_pad", 0)
    if padding_counts and given.get("ceil_mode", 0):
        raise untrainable(node, "it counts padding, and windows that reach beyond it (ceil_mode)")
    counts = np.float32(windows.area) if padding_counts else covered(windows)
    share = t.add("Div", [t.whole(gradients[0], node), t.constant(counts)])
    return [Adjoint(t.like(_spread(share, windows, t), x, node), dims)]


def covered(windows: Windows) -> np.ndarray:
    """How many values of the input every window covers; `(1, 1, out...)` float32, or one number for all."""
    counts = np.ones(windows.out, np.float32)
    for axis, size in enumerate(windows.sizes):
        starts = np.arange(windows.out[axis]) * windows.strides[axis] - windows.begin[axis]
        at = starts[:, np.newaxis] + np.arange(windows.kernel[axis]) * windows.dilations[axis]
        along = ((at >= 0) & (at < size)).sum(axis=1)
        along = np.expand_dims(along, [i for i in range(windows.rank) if i != axis])
        counts = counts * along.astype(np.float32)
    return np.float32(windows.area) if (counts == windows.area).all() else counts[np.newaxis, np.newaxis]


def _spread(share: str, windows: Windows, to: Tape) -> str:
    # One axis more in one dimension, as for convolutions.
    lead, one = ([0], [1]) if windows.rank == 1 else ([], [])
    alone = to.add("Reshape", [share, to.sizes(-1, 1, *one, *windows.out)])
    ones = to.constant(np.ones((1, 1, *one, *windows.kernel), np.float32))
    return to.add(
        "ConvTranspose",
        [alone, ones],
        strides=[*one, *windows.strides],
        dilations=[*one, *windows.dilations],
        pads=[*lead, *windows.begin, *lead, *windows.end],
        output_padding=[*lead, *windows.remainder],
    )


def _windows(node: onnx.NodeProto, dims: Dims) -> Windows:
    return Windows.of(node, dims[2:], tuple(attributes_of(node)["kernel_shape"]))


_GRIDS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_HALF = np.float32(0.5)


@backward("Resize")
def resize(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ by the share of each input in each output, axis by axis."""
    given, x = attributes_of(node), node.input[0]
    coarse, fine = t.dims(x, node), t.dims(node.output[0], node)
    scales = _scales(node, coarse, fine, t)
    mode, grid = given.get("mode", "nearest"), given.get("coordinate_transformation_mode", "half_pixel")
    if mode not in ("nearest", "linear") or grid not in _GRIDS:
        raise untrainable(node, f"its mode is {mode} with {grid}")
    if given.get("antialias", 0) or given.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise untrainable(node, "it has antialias or keep_aspect_ratio_policy")
    gradient = t.whole(gradients[0], node)
    rounding = given.get("nearest_mode", "round_prefer_floor") if mode == "nearest" else ""
    for axis, scale in scales.items():
        at = _places(int(coarse[axis]), int(fine[axis]), scale, grid)
        shares = _nearest(at, int(coarse[axis]), rounding) if rounding else _linear(at, int(coarse[axis]))
        gradient = t.along(shares, gradient, axis, len(coarse))
    return [Adjoint(gradient, coarse)]


def _scales(node: onnx.NodeProto, coarse: Dims, fine: Dims, t: Tape) -> Mapping[int, float]:
    """By how much every axis that changes is stretched, as the operator was given it, by the axis."""
    name = node.input[2] if len(node.input) > 2 else ""
    given = t.known(name, node, "scales").tolist() if name else []
    axes = attributes_of(node).get("axes", range(len(coarse)))
    scales = {axis % len(coarse): scale for axis, scale in zip(axes, given, strict=False)}
    found = {}
    for axis, (few, many) in enumerate(zip(coarse, fine, strict=True)):
        if few == many and scales.get(axis, 1) == 1:
            continue
        if isinstance(few, str) or isinstance(many, str):
            raise untrainable(node, "it changes the batch")
        found[axis] = float(scales.get(axis, many / few))
    return found


def _places(few: int, many: int, scale: float, grid: str) -> np.ndarray:
    """Where every output lies among the inputs, in the runtime's own precision."""
    place, scale = np.arange(many, dtype=np.float32), np.float32(scale)
    if grid == "align_corners":
        return place * np.float32(few - 1) / np.float32(many - 1) if many > 1 else place * 0
    if grid == "asymmetric":
        return np.asarray(place / scale)
    if grid == "pytorch_half_pixel" and many == 1:
        return place * 0
    return np.asarray((place + _HALF) / scale - _HALF)


def _nearest(at: np.ndarray, few: int, rounding: str) -> np.ndarray:
    """1 where an input is copied to an output, else 0; `(few, many)`."""
    rounded = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.ceil(at - _HALF),
        "round_prefer_ceil": np.floor(at + _HALF),
    }[rounding]
    return np.asarray(np.equal.outer(np.arange(few), np.clip(rounded, 0, few - 1)), np.float32)


def _linear(at: np.ndarray, few: int) -> np.ndarray:
    """How much of each input is in each output of a linear interpolation; `(few, many)`."""
    at = np.clip(at.astype(np.float64), 0, few - 1)
    low = np.minimum(np.floor(at).astype(int), few - 1)
    shares, many = np.zeros((few, len(at))), range(len(at))
    np.add.at(shares, (low, many), 1 - (at - low))
    np.add.at(shares, (np.minimum(low + 1, few - 1), many), at - low)
    return shares.astype(np.float32)
