"""Operators that the gradient builder cannot derive, or derives wrongly, train on both engines."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.bundles.graph.edit import opset_of
from edged.bundles.source.normalise import conform, parameter_names
from edged.bundles.source.opset import trainable_form
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from tests.building import build
from tests.bundles.engines_agree.gradients import assert_equal, both_gradients, gradients, numerical
from tests.bundles.models import model
from tests.installed import built_for_each

RNG = np.random.default_rng(5)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(np.float32), name)


def sizes(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


# ---- activations -------------------------------------------------------------------------------


def _elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(x, 0))


ALPHA, GAMMA = 1.6732632423543772, 1.0507009873554805
# Operator, attributes, what it computes, its slope at 0 as in PyTorch, and the opset it came with.
ACTIVATIONS: dict[str, tuple[str, dict[str, float], Callable[[np.ndarray], np.ndarray], float, int]] = {
    "elu": ("Elu", {"alpha": 0.7}, lambda x: _elu(x, 0.7), 0.7, 17),
    "selu": ("Selu", {}, lambda x: GAMMA * _elu(x, ALPHA), GAMMA * ALPHA, 17),
    "celu": ("Celu", {"alpha": 2.0}, lambda x: np.where(x > 0, x, 2 * np.expm1(x / 2)), 1, 17),
    "hard sigmoid": ("HardSigmoid", {"alpha": 0.3}, lambda x: np.clip(0.3 * x + 0.5, 0, 1), 0.3, 17),
    "hard swish": ("HardSwish", {}, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 0.5, 17),
    "softplus": ("Softplus", {}, _softplus, 0.5, 17),
    "softsign": ("Softsign", {}, lambda x: x / (1 + np.abs(x)), 1, 17),
    "thresholded": ("ThresholdedRelu", {"alpha": 0.5}, lambda x: np.where(x > 0.5, x, 0), 0, 17),
    "mish": ("Mish", {}, lambda x: x * np.tanh(_softplus(x)), 0.6, 18),
    "gelu": ("Gelu", {}, lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2, 0.5, 20),
}  # fmt: skip


def shifted(operator: str, opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    """Three times the input plus c, then the activation, then a product."""
    nodes = [
        helper.make_node("Mul", ["input", "three"], ["h"]),
        helper.make_node("Add", ["h", "c"], ["shifted"]),
        helper.make_node(operator, ["shifted"], ["a"], name="act", **attributes),
        helper.make_node("MatMul", ["a", "v"], ["output"]),
    ]
    three = numpy_helper.from_array(np.float32(3), "three")
    c = numpy_helper.from_array(np.array([0.1, 0, 0.2, -0.1], np.float32), "c")
    return model(nodes, [c, weight("v", 4, 2), three], opset=opset)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_without_a_gradient(tmp_path: Path, name: str) -> None:
    operator, attributes, function, _, opset = ACTIVATIONS[name]
    bundles = built_for_each(shifted(operator, opset, **attributes), tmp_path, loss="mse", optimizer="sgd")
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((7, n)).astype(np.float32) for n in (4, 2))
    start = open_engine("portable", bundles["portable"]).parameters()
    np.testing.assert_allclose(
        InferenceModel(bundles["portable"].inference_model).predict(x),
        function(3 * x + start["c"]) @ start["v"],
        atol=1e-5,
    )
    expected = numerical(lambda at: ((function(3 * x + at["c"]) @ at["v"] - y) ** 2).mean(), start)
    for each in bundles.values():
        assert_equal(expected, gradients(each, x, y))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_slope_at_zero_is_the_usual_one(tmp_path: Path, name: str) -> None:
    operator, attributes, function, slope, opset = ACTIVATIONS[name]
    plain = shifted(operator, opset, **attributes)
    plain.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros(4, np.float32), "c"))
    bundles = built_for_each(plain, tmp_path, loss="mse", optimizer="sgd")
    x, y = np.zeros((1, 4), np.float32), np.ones((1, 2), np.float32)
    for engine, bundle in bundles.items():
        v = open_engine(engine, bundle).parameters()["v"]
        error = function(np.zeros((1, 4))) @ v - y
        np.testing.assert_allclose(
            gradients(bundle, x, y)["c"], slope * (error @ v.T)[0], rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("shape", [(1,), (4,), (1, 4)])
def test_a_learned_slope(tmp_path: Path, shape: tuple[int, ...]) -> None:
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("PRelu", ["h", "slope"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["output"]),
    ]
    slope = numpy_helper.from_array(np.full(shape, 0.25, np.float32), "slope")
    bundles = built_for_each(
        model(nodes, [weight("w", 4, 4), slope, weight("v", 4, 2)]),
        tmp_path,
        loss="mse",
        optimizer="sgd",
    )
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((7, n)).astype(np.float32) for n in (4, 2))

    def loss(at: Any) -> float:
        h = x @ at["w"]
        return float(((np.where(h > 0, h, at["slope"] * h) @ at["v"] - y) ** 2).mean())

    expected = numerical(loss, open_engine("portable", bundles["portable"]).parameters())
    for each in bundles.values():
        assert_equal(expected, gradients(each, x, y))


@pytest.mark.parametrize("value", [80.0, -80.0, 1e4, -1e4])
@pytest.mark.parametrize("operator", ["Elu", "Selu", "Celu", "Softplus", "Mish"])
def test_no_activation_overflows(tmp_path: Path, operator: str, value: float) -> None:
    bundles = built_for_each(shifted(operator, 18), tmp_path, loss="l1")
    x, y = np.full((3, 4), value, np.float32), np.zeros((3, 2), np.float32)
    for engine, bundle in bundles.items():
        assert open_engine(engine, bundle).step(x, y, careful=True).applied


# ---- normalisation -----------------------------------------------------------------------------


def normalised(node: onnx.NodeProto, *parameters: onnx.TensorProto, opset: int = 17) -> onnx.ModelProto:
    """MatMul → tables (4, 3) → the normalisation, which reads `shaped` and writes `normal` → MatMul."""
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["product"]),
        helper.make_node("Reshape", ["product", "to"], ["shaped"]),
        node,
        helper.make_node("Tanh", ["normal"], ["active"]),
        helper.make_node("Flatten", ["active"], ["flat"]),
        helper.make_node("MatMul", ["flat", "v"], ["output"]),
    ]
    ends = [weight("w", 4, 12), weight("v", 12, 2), sizes("to", 0, 4, 3)]
    return model(nodes, [*ends, *parameters], opset=opset)


def reference(
    at: Any, x: np.ndarray, y: np.ndarray, groups: int, scale: np.ndarray, bias: np.ndarray, by_group: bool
) -> float:
    h = (x @ at["w"]).reshape(len(x), groups, -1)
    h = (h - h.mean(2, keepdims=True)) / np.sqrt(h.var(2, keepdims=True) + 1e-3)
    h = h if by_group else h.reshape(len(x), 4, 3)
    h = np.tanh(h * scale[:, None] + bias[:, None]).reshape(len(x), -1)
    return float(((h @ at["v"] - y) ** 2).mean())


CASES = {
    "each channel": ("InstanceNormalization", 4, 4, 17),
    "groups, opset 18": ("GroupNormalization", 2, 2, 18),
    "groups, opset 21": ("GroupNormalization", 2, 4, 21),
    "one group": ("GroupNormalization", 1, 4, 21),
}


@pytest.mark.parametrize("name", CASES)
def test_normalisation_of_channels(tmp_path: Path, name: str) -> None:
    operator, groups, width, opset = CASES[name]
    attributes: dict[str, Any] = {"num_groups": groups} if operator == "GroupNormalization" else {}
    node = helper.make_node(operator, ["shaped", "g", "b"], ["normal"], name="n", epsilon=1e-3, **attributes)
    given = normalised(node, weight("g", width), weight("b", width), opset=opset)
    bundles = built_for_each(given, tmp_path, loss="mse", optimizer="sgd")
    assert set(bundles["portable"].trainable) == {"w", "v", "g", "b"}
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((5, n)).astype(np.float32) for n in (4, 2))
    start = open_engine("portable", bundles["portable"]).parameters()

    def loss(at: Any) -> float:
        return reference(at, x, y, groups, at["g"], at["b"], by_group=groups == width)

    assert open_engine("portable", bundles["portable"]).evaluate(x, y) == pytest.approx(loss(start), rel=1e-5)
    expected = numerical(loss, start)
    for each in bundles.values():
        assert_equal(expected, gradients(each, x, y))


@pytest.mark.parametrize(
    ("parameters", "axis", "form"),
    [((3,), -1, "gb"), ((4, 3), 1, "gb"), ((3,), -1, "g"), ((4, 3), -2, "g"), ((1,), -1, "gb")],
)
def test_normalisation_of_layers(tmp_path: Path, parameters: tuple[int, ...], axis: int, form: str) -> None:
    """With and without a bias, along one axis and two, and of single numbers."""
    node = helper.make_node("LayerNormalization", ["shaped", *form], ["normal"], axis=axis, epsilon=1e-3)
    given = normalised(node, *(weight(name, *parameters) for name in form))
    if parameters == (1,):
        given.graph.initializer[2].CopyFrom(sizes("to", 0, 12, 1))
    bundles = built_for_each(given, tmp_path, loss="mse", optimizer="sgd")
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((5, n)).astype(np.float32) for n in (4, 2))

    def loss(at: Any) -> float:
        h = (x @ at["w"]).reshape(5, -1, *(parameters if len(parameters) > 1 else parameters[-1:]))
        inner = tuple(range(-len(parameters), 0))
        h = (h - h.mean(inner, keepdims=True)) / np.sqrt(h.var(inner, keepdims=True) + 1e-3)
        h = np.tanh(h * at["g"] + at.get("b", 0)).reshape(5, -1)
        return float(((h @ at["v"] - y) ** 2).mean())

    expected = numerical(loss, open_engine("portable", bundles["portable"]).parameters())
    for each in bundles.values():
        assert_equal(expected, gradients(each, x, y))


def test_large_values_are_normalised_exactly(tmp_path: Path) -> None:
    """Means a thousand times the deviation: E[x²] − μ² would have no digit left."""
    nodes = [
        helper.make_node("Reshape", ["input", "to"], ["shaped"]),
        helper.make_node("InstanceNormalization", ["shaped", "g", "b"], ["normal"]),
        helper.make_node("Flatten", ["normal"], ["flat"]),
        helper.make_node("MatMul", ["flat", "v"], ["output"]),
    ]
    given = model(nodes, [sizes("to", 0, 1, 4), weight("g", 1), weight("b", 1), weight("v", 4, 2)])
    bundles = built_for_each(given, tmp_path, loss="mse")
    rng = np.random.default_rng(0)
    x = (3000 + rng.standard_normal((6, 4))).astype(np.float32)
    y = np.zeros((6, 2), np.float32)
    expected = float((InferenceModel(bundles["portable"].inference_model).predict(x) ** 2).mean())
    for engine, bundle in bundles.items():
        assert open_engine(engine, bundle).evaluate(x, y) == pytest.approx(expected, rel=1e-3)


def test_normalising_single_numbers_leaves_the_bias_alone(tmp_path: Path) -> None:
    node = helper.make_node("InstanceNormalization", ["shaped", "g", "b"], ["normal"], name="n")
    given = normalised(node, weight("g", 12), weight("b", 12))
    given.graph.initializer[2].CopyFrom(sizes("to", 0, 12, 1))
    bundle = build(given, tmp_path / "b", loss="mse", optimizer="sgd")
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((5, n)).astype(np.float32) for n in (4, 2))
    found = gradients(bundle, x, y)
    bias = open_engine("portable", bundle).parameters()

    def loss(at: Any) -> float:
        return float(((np.tanh(np.broadcast_to(at["b"], (5, 12))) @ at["v"] - y) ** 2).mean())

    expected = numerical(loss, {name: bias[name] for name in ("b", "v")})
    assert_equal(expected, {name: found[name] for name in expected})
    assert not found["w"].any()


def test_sizes_that_vary_with_the_batch(tmp_path: Path) -> None:
    node = helper.make_node("InstanceNormalization", ["turned", "g", "b"], ["other"], name="n")
    given = normalised(node, weight("g", 4), weight("b", 4))
    turn = helper.make_node("Transpose", ["shaped"], ["turned"], perm=[2, 1, 0])
    back = helper.make_node("Transpose", ["other"], ["normal"], perm=[2, 1, 0])
    given.graph.node.insert(2, turn)
    given.graph.node.insert(4, back)
    assert_equal(*both_gradients(given, tmp_path))


def test_the_inference_model_keeps_its_operators(tmp_path: Path) -> None:
    node = helper.make_node("InstanceNormalization", ["shaped", "g", "b"], ["normal"])
    bundle = build(normalised(node, weight("g", 4), weight("b", 4)), tmp_path / "b", loss="mse")
    graph = onnx.load(str(bundle.inference_model)).graph
    assert [item.op_type for item in graph.node] == [
        "MatMul", "Reshape", "InstanceNormalization", "Tanh", "Flatten", "MatMul"
    ]  # fmt: skip


# ---- splits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, (1, 2, 1)])
def test_a_part_that_nobody_reads(tmp_path: Path, lengths: tuple[int, ...] | None) -> None:
    parts = ["p0", "p1", "p2"] if lengths else ["p0", "p1", "p2", "p3"]
    inputs = ["h", "lengths"] if lengths else ["h"]
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("Split", inputs, parts, axis=1),
        helper.make_node("Mul", ["p0", "p2"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["output"]),
    ]
    extra = [sizes("lengths", *lengths)] if lengths else []
    bundles = built_for_each(
        model(nodes, [weight("w", 4, 4), weight("v", 1, 2), *extra]),
        tmp_path,
        loss="mse",
        optimizer="sgd",
    )
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((7, n)).astype(np.float32) for n in (4, 2))
    last = 3 if lengths else 2

    def loss(at: Any) -> float:
        h = x @ at["w"]
        return float(((h[:, :1] * h[:, last : last + 1] @ at["v"] - y) ** 2).mean())

    expected = numerical(loss, open_engine("portable", bundles["portable"]).parameters())
    for each in bundles.values():
        assert_equal(expected, gradients(each, x, y))


def test_a_split_that_is_used_up_stays(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("Split", ["h"], ["l", "r"], axis=1),
        helper.make_node("Mul", ["l", "r"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["output"]),
    ]
    assert_equal(*both_gradients(model(nodes, [weight("w", 4, 4), weight("v", 2, 2)]), tmp_path))


# ---- initialisers that exporters join ----------------------------------------------------------


def layers(second: tuple[str, str], *renamed: tuple[str, str]) -> onnx.ModelProto:
    """Two layer normalisations; the second reads `second`, perhaps through Identity nodes."""
    nodes = [
        *(helper.make_node("Identity", [old], [new]) for old, new in renamed),
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "n1.weight", "n1.bias"], ["a"], name="n1"),
        helper.make_node("LayerNormalization", ["a", *second], ["b"], name="n2"),
        helper.make_node("MatMul", ["b", "v"], ["output"]),
    ]
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    fresh = [numpy_helper.from_array(ones, "n1.weight"), numpy_helper.from_array(zeros, "n1.bias")]
    return model(nodes, [weight("w", 4, 4), *fresh, weight("v", 4, 2)])


def test_fresh_parameters_that_were_joined_become_their_own_again(tmp_path: Path) -> None:
    named = layers(("n2.weight", "n2.bias"), ("n1.weight", "n2.weight"), ("n1.bias", "n2.bias"))
    unnamed = layers(("n1.weight", "n1.bias"))
    apart = [conform(given).graph for given in (named, unnamed)]
    assert [{tensor.name for tensor in graph.initializer} - {"w", "v"} for graph in apart] == [
        {"n1.weight", "n1.bias", "n2.weight", "n2.bias"},
        {"n1.weight", "n1.bias", "n1.weight.n2", "n1.bias.n2"},
    ]
    for given, name in ((named, "a"), (unnamed, "b")):
        (folder := tmp_path / name).mkdir()
        assert_equal(*both_gradients(given, folder, rows=9))


def test_fresh_slopes_that_were_joined_become_their_own_again() -> None:
    nodes = [
        helper.make_node("PRelu", ["input", "slope"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "w"], ["h"]),
        helper.make_node("PRelu", ["h", "slope"], ["output"], name="second"),
    ]
    slope = numpy_helper.from_array(np.full(1, 0.25, np.float32), "slope")
    names = [tensor.name for tensor in conform(model(nodes, [slope, weight("w", 4, 2)])).graph.initializer]
    assert names == ["slope", "w", "slope.second"]


def test_what_is_shared_on_purpose_stays_shared() -> None:
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Identity", ["w"], ["again"]),
        helper.make_node("MatMul", ["t", "again"], ["k"]),
        helper.make_node("MatMul", ["k", "v"], ["output"]),
    ]
    given = conform(model(nodes, [weight("w", 4, 4), weight("v", 4, 2)]))
    assert {tensor.name for tensor in given.graph.initializer} == {"w", "v"}


def fresh_table(*, groups: bool) -> onnx.ModelProto:
    """An InstanceNormalization with ones and zeros behind a Reshape, and in front of one with `groups`."""
    node = helper.make_node("InstanceNormalization", ["shaped", "one", "zero"], ["table"], name="n")
    fixed = [
        numpy_helper.from_array(np.full(2, value, np.float32), name)
        for name, value in (("one", 1), ("zero", 0))
    ]
    back = helper.make_node("Reshape", ["table", "back"], ["normal"])
    given = normalised(node, *fixed, sizes("back", -1, 4, 3))
    given.graph.initializer[2].CopyFrom(sizes("to", 0, 2, -1))
    if groups:
        given.graph.node.insert(3, back)
    else:
        node.output[0] = "normal"
        given.graph.node[2].CopyFrom(node)
    return given


def test_the_ones_and_zeros_of_a_group_normalisation_are_no_parameters(tmp_path: Path) -> None:
    grouped, plain = (
        build(fresh_table(groups=groups), tmp_path / str(groups), loss="mse") for groups in (True, False)
    )
    assert grouped.trainable == ("w", "v")
    assert plain.trainable == ("w", "v", "one", "zero")


def test_rare_operators_are_served_as_they_came_and_trained_as_what_they_are_made_of() -> None:
    served = conform(shifted("Mish", 18))
    assert "Mish" in {node.op_type for node in served.graph.node}
    trained = trainable_form(served)
    assert opset_of(trained) == 21
    assert {node.op_type for node in trained.graph.node} >= {"Softplus", "Tanh"}
    assert [node.name for node in trained.graph.node if node.op_type == "Tanh"] == ["act.TanHSoftplusX__1"]
    assert parameter_names(trained.graph) == parameter_names(served.graph) == ["c", "v"]
