"""Gradients of convolutions, against onnxruntime's training build or against the definition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.building import build
from tests.bundles.engines_agree.gradients import assert_equal, batch, both_gradients, gradients, numerical
from tests.bundles.engines_agree.stacks import Stack
from tests.installed import built_for_each

# Input shape, filters, kernel, attributes of the layer in the middle.
Layer = tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]
LAYERS: dict[str, Layer] = {
    "one dimension": ((3, 11), 4, (3,), {}),
    "padding on one side": ((3, 11), 4, (3,), {"pads": [2, 0]}),
    "strides that leave a rest": ((3, 12), 4, (3,), {"strides": [2]}),
    "strides wider than the kernel": ((3, 12), 4, (2,), {"strides": [3], "pads": [1, 1]}),
    "dilation": ((3, 12), 4, (3,), {"dilations": [2], "pads": [2, 2]}),
    "dilation and strides": ((3, 15), 4, (3,), {"dilations": [3], "strides": [2], "pads": [1, 2]}),
    "two dimensions": ((2, 7, 6), 3, (3, 2), {"pads": [1, 0, 1, 1]}),
    "two dimensions with strides": ((2, 7, 8), 3, (3, 3), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
    "two dimensions with dilation": ((2, 9, 8), 3, (2, 3), {"dilations": [2, 2]}),
    "one tap": ((5, 4, 4), 3, (1, 1), {}),
    "one tap with strides": ((5, 5, 5), 3, (1, 1), {"strides": [2, 2]}),
    "one tap of a wide layer": ((20, 6), 8, (1,), {}),
    "wide": ((20, 9), 8, (3,), {"pads": [1, 1]}),
    "wide with strides": ((20, 10), 8, (3,), {"pads": [1, 1], "strides": [2]}),
    "wide in two dimensions": ((17, 5, 6), 4, (3, 3), {"pads": [1, 1, 1, 1]}),
    "narrow with few filters": ((3, 6, 6), 2, (3, 3), {}),
    "groups": ((4, 9), 6, (3,), {"group": 2}),
    "groups with few filters": ((12, 8), 4, (3,), {"group": 2, "pads": [1, 1]}),
    "wide groups": ((40, 6), 8, (3,), {"group": 2, "pads": [1, 1]}),
    "groups in two dimensions": ((6, 5, 5), 4, (3, 2), {"group": 2, "strides": [1, 2]}),
    "depthwise": ((4, 9), 4, (3,), {"group": 4, "pads": [1, 1]}),
    "depthwise in two dimensions": ((3, 7, 6), 3, (3, 3), {"group": 3, "pads": [1, 1, 1, 1]}),
    "depthwise with strides": ((3, 8, 8), 3, (3, 3), {"group": 3, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "depthwise with dilation": ((3, 12), 3, (3,), {"group": 3, "dilations": [3], "pads": [2, 4]}),
    "depthwise with padding beyond the kernel": ((3, 6), 3, (2,), {"group": 3, "pads": [3, 2]}),
    "depthwise with a multiplier": ((3, 9), 6, (3,), {"group": 3, "pads": [1, 1]}),
    "three dimensions": ((2, 4, 5, 4), 3, (2, 3, 2), {"pads": [0, 1, 0, 1, 1, 0]}),
}


def network(layer: Layer) -> Stack:
    """A layer before it, so that the gradient of its input counts too."""
    shape, filters, kernel, attributes = layer
    first = Stack(*shape).conv(shape[0], *[1] * len(kernel)).add("Tanh")
    return first.conv(filters, *kernel, **attributes).add("Tanh")


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_a_convolution(tmp_path: Path, layer: Layer) -> None:
    assert_equal(*both_gradients(network(layer).model(), tmp_path))


def test_a_frozen_layer_passes_the_gradient_on(tmp_path: Path) -> None:
    stack = network(LAYERS["two dimensions with strides"])
    frozen = stack.weights[2].name
    assert_equal(*both_gradients(stack.model(), tmp_path, rows=5, freeze=[frozen]))


@pytest.mark.parametrize(
    "layer",
    ["wide", "wide in two dimensions", "wide groups", "narrow with few filters", "groups in two dimensions"],
)
def test_one_image(tmp_path: Path, layer: str) -> None:
    assert_equal(*both_gradients(network(LAYERS[layer]).model(), tmp_path, rows=1))


@pytest.mark.parametrize("padding", ["SAME_UPPER", "SAME_LOWER"])
def test_automatic_padding(tmp_path: Path, padding: str) -> None:
    stack = Stack(3, 8).conv(4, 3, auto_pad=padding, strides=[2])
    assert_equal(*both_gradients(stack.model(), tmp_path))


# ---- transposed ---------------------------------------------------------------------------------

TRANSPOSED: dict[str, Layer] = {
    "plain": ((2, 4), 3, (3,), {}),
    "strides": ((2, 4), 3, (3,), {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
    "dilation": ((2, 4), 3, (2,), {"dilations": [3], "pads": [1, 0]}),
    "groups": ((4, 4), 4, (3,), {"group": 2, "strides": [2]}),
    "two dimensions": ((2, 2, 3), 2, (2, 3), {"strides": [2, 1], "pads": [0, 1, 1, 0]}),
    "depthwise": ((3, 4), 3, (3,), {"group": 3, "pads": [1, 1]}),
}


ALL = slice(None)


def transposed(x: np.ndarray, filters: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    """y[n, m, i·stride + t·dilation − begin] += x[n, c, i]·W[c, m, t], in float64."""
    kernel, groups = filters.shape[2:], attributes.get("group", 1)
    rank = len(kernel)
    strides, dilations, added = (
        attributes.get(key, [default] * rank)
        for key, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    pads = attributes.get("pads", [0] * (2 * rank))
    sizes = [
        (i - 1) * s + d * (k - 1) + 1 + a
        for i, s, d, k, a in zip(x.shape[2:], strides, dilations, kernel, added, strict=True)
    ]
    y = np.zeros((len(x), filters.shape[1] * groups, *sizes))
    parts = zip(np.split(x, groups, 1), np.split(filters, groups), np.split(y, groups, 1), strict=True)
    for part, weights, out in parts:
        for at in np.ndindex(*kernel):
            where = zip(at, strides, dilations, x.shape[2:], strict=True)
            cut = (slice(t * d, t * d + (i - 1) * s + 1, s) for t, s, d, i in where)
            places = (ALL, ALL, *cut)
            taken = weights.reshape(*weights.shape[:2], -1)[:, :, np.ravel_multi_index(at, kernel)]
            out[places] += np.einsum("nc...,cm->nm...", part, taken)
    ends = [size - end for size, end in zip(sizes, pads[rank:], strict=True)]
    inside = (ALL, ALL, *(slice(begin, end) for begin, end in zip(pads[:rank], ends, strict=True)))
    return y[inside]


@pytest.mark.parametrize("layer", TRANSPOSED.values(), ids=TRANSPOSED.keys())
def test_a_transposed_convolution_which_only_the_portable_engine_trains(tmp_path: Path, layer: Layer) -> None:
    shape, filters, kernel, attributes = layer
    stack = Stack(*shape).conv(shape[0], *[1] * len(kernel)).add("Tanh")
    weight = stack.weight(shape[0], filters // attributes.get("group", 1), *kernel)
    model = stack.add("ConvTranspose", weight, stack.weight(filters), **attributes).model(2)
    (bundle,) = built_for_each(model, tmp_path, loss="mse", optimizer="sgd").values()
    x, y = batch(bundle, 3)

    def loss(point: Mapping[str, np.ndarray]) -> float:
        first, bias, weight, shift, last, end = (point[f"w{i}"] for i in range(6))
        inner = np.einsum("nc...,mc->nm...", x.reshape(3, *shape), first.reshape(len(first), -1))
        spatial = [1] * len(kernel)
        out = transposed(np.tanh(inner + bias.reshape(-1, *spatial)), weight, attributes)
        flat = (out + shift.reshape(-1, *spatial)).reshape(3, -1)
        return float(np.mean((flat @ last.T + end - y) ** 2))

    at = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert_equal(numerical(loss, at), gradients(bundle, x, y))


# ---- memory -------------------------------------------------------------------------------------


def test_the_columns_of_a_wide_layer_are_never_all_held_at_once(tmp_path: Path) -> None:
    channels, sizes, taps = 20, 9, 3
    stack = Stack(channels, sizes).conv(8, taps, pads=[1, 1])
    bundle = build(stack.model(), tmp_path / "b", loss="mse", engine="portable")
    graph = onnx.load(str(bundle.path / "step_model.onnx"))
    values = onnx.shape_inference.infer_shapes(graph, data_prop=True).graph.value_info
    shapes = {value.name: [d.dim_value or 1 for d in value.type.tensor_type.shape.dim] for value in values}
    # The flat state and its gradient are no part of the layer.
    largest = max(math.prod(shape) for shape in shapes.values() if math.prod(shape) > max(shape))
    assert channels * sizes < largest < channels * sizes * taps
