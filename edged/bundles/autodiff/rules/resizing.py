"""Making a grid finer or coarser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edged.bundles.autodiff.registry import backward
from edged.bundles.autodiff.tape import Adjoint, untrainable
from edged.bundles.graph.writer import attributes_of

if TYPE_CHECKING:
    import onnx

    from edged.bundles.autodiff.registry import Adjoints
    from edged.bundles.autodiff.tape import Dims, Tape

# How a fine grid can be laid over a coarse one so that output i is copied from input i // factor.
_COPIES = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}
_GRIDS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
_HALF = np.float32(0.5)


@backward("Resize")
def resize(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """ḡ by the share of each input in each output, axis by axis; summed over copies."""
    given, x = attributes_of(node), node.input[0]
    coarse, fine = t.dims(x, node), t.dims(node.output[0], node)
    scales = _scales(node, coarse, fine, t)
    mode, grid = given.get("mode", "nearest"), given.get("coordinate_transformation_mode", "half_pixel")
    if mode not in ("nearest", "linear") or grid not in _GRIDS or given.get("antialias", 0):
        raise untrainable(node, f"its mode is {mode} with {grid}")
    gradient = t.whole(gradients[0], node)
    rounding = given.get("nearest_mode", "round_prefer_floor") if mode == "nearest" else ""
    if (grid, rounding) in _COPIES and _is_whole(scales, coarse, fine):
        factors = [int(scales.get(axis, 1)) for axis in range(2, len(coarse))]
        mean = t.add("AveragePool", [gradient], kernel_shape=factors, strides=factors)
        return [Adjoint(t.add("Mul", [mean, t.number(math.prod(factors))]), coarse)]
    for axis, scale in scales.items():
        at = _places(int(coarse[axis]), int(fine[axis]), scale, grid)
        shares = _nearest(at, int(coarse[axis]), rounding) if rounding else _linear(at, int(coarse[axis]))
        gradient = t.along(shares, gradient, axis, len(coarse))
    return [Adjoint(gradient, coarse)]


def _scales(node: onnx.NodeProto, coarse: Dims, fine: Dims, t: Tape) -> Mapping[int, float]:
    """By how much every axis that changes is stretched, as the operator was given it, by the axis."""
    name = node.input[2] if len(node.input) > 2 else ""
    scales = t.known(name, node, "scales").tolist() if name else []
    found = {}
    for axis, (few, many) in enumerate(zip(coarse, fine, strict=True)):
        if few == many and (not scales or scales[axis] == 1):
            continue
        if isinstance(few, str) or isinstance(many, str):
            raise untrainable(node, "it changes the batch")
        found[axis] = float(scales[axis]) if scales else many / few
    return found


def _is_whole(scales: Mapping[int, float], coarse: Dims, fine: Dims) -> bool:
    """Whether every axis behind the channels, and only those, is stretched by a whole number."""
    return set(scales) <= {2, 3, 4} and all(
        scale == int(scale) and fine[axis] == int(scale) * int(coarse[axis]) for axis, scale in scales.items()
    )


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
