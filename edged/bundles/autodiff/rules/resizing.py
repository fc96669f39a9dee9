"""Making a grid finer or coarser."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from edged.bundles.autodiff.registry import backward
from edged.bundles.autodiff.tape import Adjoint, untrainable
from edged.bundles.graph.writer import attributes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import onnx

    from edged.bundles.autodiff.registry import Adjoints
    from edged.bundles.autodiff.tape import Tape

# How a fine grid can be laid over a coarse one so that output i is copied from input i // factor.
_COPIES = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
    ("pytorch_half_pixel", "round_prefer_ceil"),
}
_LINEAR = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@backward("Resize", "Upsample")
def resize(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> Adjoints:
    """Nearest by whole factors: ḡ summed over the copies. Linear: ḡ by the same shares, axis by axis."""
    given, x = attributes_of(node), node.input[0]
    coarse, fine = t.dims(x, node), t.dims(node.output[0], node)
    changed = [i for i, (a, b) in enumerate(zip(coarse, fine, strict=True)) if a != b]
    if any(isinstance(size, str) for i in changed for size in (coarse[i], fine[i])):
        raise untrainable(node, "it changes the batch")
    gradient = t.whole(gradients[0], node)
    sizes = [(int(coarse[i]), int(fine[i])) for i in changed]
    if given.get("mode", "nearest") == "nearest":
        return [Adjoint(_copied(node, gradient, changed, sizes, given, t), coarse)]
    grid = given.get("coordinate_transformation_mode", "half_pixel")
    if given["mode"] != "linear" or grid not in _LINEAR or given.get("antialias", 0):
        raise untrainable(node, f"its mode is {given['mode']} with {grid}")
    for axis, (few, many) in zip(changed, sizes, strict=True):
        gradient = t.along(_shares(few, many, grid), gradient, axis, len(coarse))
    return [Adjoint(gradient, coarse)]


def _copied(
    node: onnx.NodeProto,
    gradient: str,
    changed: list[int],
    sizes: list[tuple[int, int]],
    given: Mapping[str, Any],
    t: Tape,
) -> str:
    form = (
        given.get("coordinate_transformation_mode", "half_pixel"),
        given.get("nearest_mode", "round_prefer_floor"),
    )
    if form not in _COPIES or any(many % few for few, many in sizes) or not set(changed) <= {2, 3, 4}:
        raise untrainable(node, "of mode nearest, only whole factors behind the channels are covered")
    rank = len(t.dims(node.input[0], node))
    factors = [1] * (rank - 2)
    for axis, (few, many) in zip(changed, sizes, strict=True):
        factors[axis - 2] = many // few
    mean = t.add("AveragePool", [gradient], kernel_shape=factors, strides=factors)
    return t.add("Mul", [mean, t.number(math.prod(factors))])


def _shares(few: int, many: int, grid: str) -> np.ndarray:
    """How much of each input is in each output of a linear interpolation; `(few, many)`."""
    places = np.arange(many, dtype=np.float64)
    if grid == "align_corners":
        at = places * ((few - 1) / (many - 1) if many > 1 else 0)
    elif grid == "asymmetric":
        at = places * few / many
    else:
        at = (places + 0.5) * few / many - 0.5 if many > 1 or grid == "half_pixel" else places * 0
    at = np.clip(at, 0, few - 1)
    low = np.minimum(np.floor(at).astype(int), few - 1)
    shares = np.zeros((few, many))
    np.add.at(shares, (low, range(many)), 1 - (at - low))
    np.add.at(shares, (np.minimum(low + 1, few - 1), range(many)), at - low)
    return shares.astype(np.float32)
