"""Gradients of poolings, against onnxruntime's training build or an equal network that it can train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edged.errors import BundleError
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.bundles.engines_agree.gradients import assert_equal, batch, both_gradients, gradients
from tests.bundles.engines_agree.stacks import Stack
from tests.installed import ENGINES, built_for_each, needs_native

# Input shape and attributes of the pooling.
Pool = tuple[tuple[int, ...], dict[str, Any]]
MAXIMUM: dict[str, Pool] = {
    "side by side": ((3, 12), {"kernel_shape": [2], "strides": [2]}),
    "side by side with a rest": ((3, 13), {"kernel_shape": [2], "strides": [2]}),
    "with gaps": ((3, 13), {"kernel_shape": [2], "strides": [3]}),
    "overlapping": ((3, 12), {"kernel_shape": [3], "strides": [2]}),
    "overlapping, by default stride": ((3, 12), {"kernel_shape": [3]}),
    "padded": ((3, 12), {"kernel_shape": [2], "strides": [2], "pads": [1, 1]}),
    "dilated": ((3, 12), {"kernel_shape": [2], "strides": [3], "dilations": [2]}),
    "two rows": ((2, 6, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "two rows, three columns": ((2, 4, 9), {"kernel_shape": [2, 3], "strides": [2, 3]}),
    "two rows with a rest": ((2, 7, 6), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "three rows": ((2, 6, 6), {"kernel_shape": [3, 3], "strides": [3, 3]}),
    "overlapping in two dimensions": (
        (2, 7, 8),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    ),
    "dilated rows": ((2, 8, 8), {"kernel_shape": [2, 2], "strides": [2, 2], "dilations": [2, 2]}),
    "rounded up": ((3, 13), {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}),
    "automatic padding": ((3, 13), {"kernel_shape": [2], "strides": [2], "auto_pad": "SAME_UPPER"}),
    "three dimensions": ((2, 4, 4, 4), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
}


def pooled(operator: str, pool: Pool, *activations: str) -> Stack:
    shape, attributes = pool
    stack = Stack(*shape).conv(shape[0] + 1, *[1] * (len(shape) - 1))
    for activation in activations:
        stack.add(activation)
    return stack.add(operator, **attributes)


@pytest.mark.parametrize("pool", MAXIMUM.values(), ids=MAXIMUM.keys())
def test_the_maximum(tmp_path: Path, pool: Pool) -> None:
    assert_equal(*both_gradients(pooled("MaxPool", pool).model(), tmp_path))


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Sigmoid", "Tanh", "Abs", "Softplus"])
def test_an_activation_in_front_of_it(tmp_path: Path, activation: str) -> None:
    assert_equal(*both_gradients(pooled("MaxPool", MAXIMUM["two rows"], activation).model(), tmp_path))


def test_the_maximum_of_everything(tmp_path: Path) -> None:
    assert_equal(*both_gradients(pooled("GlobalMaxPool", ((3, 5, 4), {}), "Relu").model(), tmp_path))


def test_the_mean_of_everything(tmp_path: Path) -> None:
    assert_equal(*both_gradients(pooled("GlobalAveragePool", ((3, 5, 4), {})).model(), tmp_path))


@needs_native
def test_of_equal_values_one_alone_has_the_gradient(tmp_path: Path) -> None:
    stack = pooled("MaxPool", ((2, 4, 4), {"kernel_shape": [2, 2], "strides": [2, 2]}))
    bundles = built_for_each(stack.model(), tmp_path, loss="mse", optimizer="sgd")
    _, y = batch(bundles["native"], 4)
    x = np.ones((4, bundles["native"].input.width), np.float32)
    assert_equal(*(gradients(bundle, x, y) for bundle in bundles.values()))


def test_positions_in_column_order_are_refused_by_node(tmp_path: Path) -> None:
    stack = pooled("MaxPool", ((2, 4, 4), {"kernel_shape": [2, 2], "strides": [2, 2], "storage_order": 1}))
    with pytest.raises(BundleError, match=r"MaxPool cannot be trained .* storage_order is 1"):
        build(stack.model(), tmp_path / "b", loss="mse", engine="portable")


# ---- the order of activation and pooling --------------------------------------------------------


def step_operators(bundle: Bundle) -> list[str]:
    return [node.op_type for node in onnx.load(str(bundle.path / "step_model.onnx")).graph.node]


def test_a_rising_activation_is_computed_behind_the_pooling(tmp_path: Path) -> None:
    bundle = build(pooled("MaxPool", MAXIMUM["padded"], "Tanh").model(), tmp_path / "b", loss="mse")
    found = step_operators(bundle)
    assert found.index("MaxPool") < found.index("Tanh")


def test_an_activation_that_is_read_elsewhere_stays_where_it_is(tmp_path: Path) -> None:
    stack = pooled("MaxPool", MAXIMUM["padded"], "Tanh")
    activated, pool = (stack.nodes[i].output[0] for i in (1, 2))
    stack.current = activated
    stack.add("GlobalAveragePool").add("Add", pool)
    assert_equal(*both_gradients(stack.model(), tmp_path, rows=5))
    found = step_operators(Bundle.open(tmp_path / "portable"))
    assert found.index("Tanh") < found.index("MaxPool")


def test_an_activation_that_falls_stays_where_it_is(tmp_path: Path) -> None:
    bundle = build(pooled("MaxPool", MAXIMUM["padded"], "Abs").model(), tmp_path / "b", loss="mse")
    found = step_operators(bundle)
    assert found.index("Abs") < found.index("MaxPool")


# ---- averages -----------------------------------------------------------------------------------

AVERAGES: dict[str, Pool] = {
    "side by side": ((3, 12), {"kernel_shape": [3], "strides": [3]}),
    "with a rest": ((3, 13), {"kernel_shape": [2], "strides": [2]}),
    "overlapping": ((3, 12), {"kernel_shape": [4], "strides": [2]}),
    "padded": ((3, 12), {"kernel_shape": [3], "strides": [2], "pads": [1, 2]}),
    "padded, padding counted": (
        (3, 12),
        {"kernel_shape": [3], "strides": [2], "pads": [1, 2], "count_include_pad": 1},
    ),
    "in two dimensions": ((2, 6, 8), {"kernel_shape": [3, 2], "strides": [3, 2]}),
    "padded in two dimensions": (
        (2, 7, 8),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 1]},
    ),
    "padded in two dimensions, padding counted": (
        (2, 7, 8),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1},
    ),
}


def as_convolution(pool: Pool) -> Stack:
    """The same average with frozen filters, and a frozen factor where padding does not count."""
    shape, given = pool
    attributes = {key: value for key, value in given.items() if key in ("strides", "pads")}
    channels = shape[0] + 1
    stack = Stack(*shape).conv(channels, *[1] * (len(shape) - 1))
    area = int(np.prod(given["kernel_shape"]))
    filters = np.full((channels, 1, *given["kernel_shape"]), 1 / area, np.float32)
    stack.weights.append(numpy_helper.from_array(filters, "frozen.filters"))
    before = stack.shape
    stack.add("Conv", "frozen.filters", group=channels, **attributes)
    counts = averages(np.ones((1, *before), np.float32), given) if not given.get("count_include_pad") else 1
    stack.weights.append(numpy_helper.from_array(np.asarray(1 / counts, np.float32), "frozen.factor"))
    return stack.add("Mul", "frozen.factor")


def averages(ones: np.ndarray, given: dict[str, Any]) -> np.ndarray:
    """How much of every window lies on the input."""
    pads, rank = given.get("pads", [0] * (2 * (ones.ndim - 2))), ones.ndim - 2
    wide = np.pad(ones, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    windows = np.lib.stride_tricks.sliding_window_view(wide, given["kernel_shape"], tuple(range(2, 2 + rank)))
    steps = (slice(None), slice(None), *(slice(None, None, stride) for stride in given["strides"]))
    counted: np.ndarray = windows[steps].mean(axis=tuple(range(-rank, 0)))
    return counted


@pytest.mark.parametrize("pool", AVERAGES.values(), ids=AVERAGES.keys())
def test_the_average_which_only_the_portable_engine_trains(tmp_path: Path, pool: Pool) -> None:
    bundles = built_for_each(pooled("AveragePool", pool).model(), tmp_path, loss="mse", optimizer="sgd")
    (bundle,) = bundles.values()
    equal = build(
        as_convolution(pool).model(), tmp_path / "c", loss="mse", optimizer="sgd", freeze=["frozen.*"],
        engine=ENGINES[-1],
    )  # fmt: skip
    x, y = batch(bundle, 5)
    assert_equal(gradients(equal, x, y), gradients(bundle, x, y))


def test_an_average_that_is_rounded_up(tmp_path: Path) -> None:
    pool = ((3, 13), {"kernel_shape": [2], "strides": [2], "ceil_mode": 1})
    assert_equal(*both_gradients(pooled("AveragePool", pool).model(), tmp_path))
    pool[1]["count_include_pad"] = 1
    with pytest.raises(BundleError, match=r"AveragePool cannot be trained .*ceil_mode"):
        build(pooled("AveragePool", pool).model(), tmp_path / "b", loss="mse", engine="portable")


# ---- finer grids --------------------------------------------------------------------------------


def resized(shape: tuple[int, ...], factors: list[float], **attributes: str) -> Stack:
    stack = Stack(*shape).conv(shape[0] + 1, *[1] * (len(shape) - 1))
    scales = np.array([1, 1, *factors], np.float32)
    stack.weights.append(numpy_helper.from_array(scales, "frozen.scales"))
    return stack.add("Resize", "", "frozen.scales", mode=attributes.pop("mode", "nearest"), **attributes)


def repeated(shape: tuple[int, ...], factors: list[int]) -> Stack:
    """The same by Expand, which the native engine trains."""
    stack = Stack(*shape).conv(shape[0] + 1, *[1] * (len(shape) - 1))
    sizes = [size * factor for size, factor in zip(shape[1:], factors, strict=True)]
    between = [i for size in zip(shape[1:], [1] * len(factors), strict=True) for i in size]
    times = [i for factor in factors for i in (1, factor)]
    lengths = ([-1, shape[0] + 1, *between], [1, 1, *times], [-1, shape[0] + 1, *sizes])
    for name, values in zip(("between", "times", "after"), lengths, strict=True):
        stack.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
    return stack.add("Reshape", "between").add("Expand", "times").add("Reshape", "after")


@pytest.mark.parametrize(("shape", "factors"), [((2, 5), [3]), ((2, 3, 4), [2, 2]), ((2, 3, 2), [1, 4])])
@pytest.mark.parametrize(
    ("grid", "rounding"), [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")]
)
def test_nearest_by_whole_factors(
    tmp_path: Path, shape: tuple[int, ...], factors: list[int], grid: str, rounding: str
) -> None:
    stack = resized(shape, list(factors), coordinate_transformation_mode=grid, nearest_mode=rounding)
    given: dict[str, Any] = {"loss": "mse", "optimizer": "sgd"}
    (bundle,) = built_for_each(stack.model(), tmp_path, **given).values()
    equal = build(repeated(shape, factors).model(), tmp_path / "c", engine=ENGINES[-1], **given)
    x, y = batch(bundle, 5)
    assert_equal(gradients(equal, x, y), gradients(bundle, x, y))


@pytest.mark.parametrize(
    ("factors", "attributes", "reason"),
    [
        ([2.0, 2.0], {"mode": "cubic"}, "its mode is cubic"),
        ([2.0], {"coordinate_transformation_mode": "tf_crop_and_resize"}, "its mode is nearest with tf_crop"),
    ],
)
def test_other_grids_are_refused_by_node(
    tmp_path: Path, factors: list[float], attributes: dict[str, str], reason: str
) -> None:
    stack = resized((2, *[5] * len(factors)), factors, **attributes)
    with pytest.raises(BundleError, match=f"Resize cannot be trained .*{reason}"):
        build(stack.model(), tmp_path / "b", loss="mse", engine="portable")
