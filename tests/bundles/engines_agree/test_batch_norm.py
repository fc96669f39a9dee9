"""Batch normalisation in training: gradients against differences, statistics against their definition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.portable.engine import PortableEngine
from edged.errors import BundleError
from tests.building import build
from tests.bundles.engines_agree.gradients import assert_equal, both_gradients, numerical
from tests.bundles.models import model
from tests.installed import ENGINES, built_for_each

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

    Values = Mapping[str, np.ndarray]

EPSILON, MOMENTUM = 1e-3, 0.8
TRAINED = ["w", "bn.scale", "bn.bias", "v"]


def values(channels: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    drawn = {
        "w": rng.standard_normal((4, 4)),
        "bn.scale": 1 + 0.3 * rng.standard_normal(channels),
        "bn.bias": 0.3 * rng.standard_normal(channels),
        "bn.mean": rng.standard_normal(channels),
        "bn.variance": rng.uniform(0.5, 2, channels),
        "v": rng.standard_normal((4, 2)),
    }
    return {name: value.astype(np.float32) for name, value in drawn.items()}


def network(shape: tuple[int, ...] = (4,), *, training: bool = False) -> onnx.ModelProto:
    """MatMul → BatchNormalization of `shape`, channels first → Tanh → MatMul."""
    outputs = ["normal", "new.mean", "new.variance"] if training else ["normal"]
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["product"]),
        helper.make_node("Reshape", ["product", "to"], ["shaped"]),
        helper.make_node(
            "BatchNormalization", ["shaped", "bn.scale", "bn.bias", "bn.mean", "bn.variance"], outputs,
            name="bn", epsilon=EPSILON, momentum=MOMENTUM, **({"training_mode": 1} if training else {}),
        ),
        helper.make_node("Flatten", ["normal"], ["flat"]),
        helper.make_node("Tanh", ["flat"], ["active"]),
        helper.make_node("MatMul", ["active", "v"], ["output"]),
    ]  # fmt: skip
    parameters = [numpy_helper.from_array(value, name) for name, value in values(shape[0]).items()]
    to = numpy_helper.from_array(np.array([-1, *shape], np.int64), "to")
    return model(nodes, [*parameters, to])


def loss_of(at: Values, x: np.ndarray, y: np.ndarray, weights: np.ndarray, channels: int) -> float:
    """The weighted mean of the squared error, in float64."""
    h = (x @ at["w"]).reshape(len(x), channels, -1)
    mean, variance = statistics(h, weights)
    normal = (h - mean[:, None]) / np.sqrt(variance[:, None] + EPSILON)
    normal = normal * at["bn.scale"][:, None] + at["bn.bias"][:, None]
    error = (np.tanh(normal.reshape(len(x), -1)) @ at["v"] - y) ** 2
    return float(weights / weights.sum() @ error.mean(1))


def statistics(h: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    share = (weights / weights.sum())[:, None, None] / h.shape[2]
    mean = (share * h).sum((0, 2))
    return mean, (share * (h - mean[:, None]) ** 2).sum((0, 2))


def batch(rows: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 4)).astype(np.float32), rng.standard_normal((rows, 2)).astype(
        np.float32
    )


def trained(bundle: Bundle, rate: float = 1.0) -> PortableEngine:
    engine = PortableEngine(bundle)
    engine.begin(LearningRate(rate))
    return engine


@pytest.fixture(params=[(4,), (2, 2), (1, 2, 2)], ids=str)
def shape(request: pytest.FixtureRequest) -> tuple[int, ...]:
    return tuple(request.param)


@pytest.mark.parametrize("weights", [[1] * 6, [1, 2, 0.5, 0, 1, 3]], ids=["equal", "unequal"])
def test_gradients_are_those_of_the_batch_with_its_weights(
    tmp_path: Path, shape: tuple[int, ...], weights: list[float]
) -> None:
    (bundle,) = built_for_each(network(shape), tmp_path, loss="mse", optimizer="sgd").values()
    x, y = batch()
    counts = np.array(weights, np.float32)
    engine = trained(bundle)
    before = engine.parameters()
    at = {name: before[name] for name in TRAINED}
    got = engine.step(x, y, weights=counts)
    after = engine.parameters()
    assert got.loss == pytest.approx(loss_of(at, x, y, counts, shape[0]), rel=1e-5)
    expected = numerical(lambda point: loss_of(point, x, y, counts, shape[0]), at)
    assert_equal(expected, {name: before[name] - after[name] for name in TRAINED})


def test_running_statistics_follow_as_pytorchs_do(tmp_path: Path, shape: tuple[int, ...]) -> None:
    engine = trained(build(network(shape), tmp_path / "b", loss="mse", optimizer="sgd"), rate=0.1)
    now = engine.parameters()
    mean, variance = now["bn.mean"].astype(np.float64), now["bn.variance"].astype(np.float64)
    for seed in range(3):
        x, y = batch(seed=seed)
        h = (x @ engine.parameters()["w"]).reshape(len(x), shape[0], -1)
        new, biased = statistics(h.astype(np.float64), np.ones(len(x)))
        count = h.size // shape[0]
        mean = MOMENTUM * mean + (1 - MOMENTUM) * new
        variance = MOMENTUM * variance + (1 - MOMENTUM) * biased * count / (count - 1)
        assert engine.step(x, y).applied
        np.testing.assert_allclose(engine.parameters()["bn.mean"], mean, atol=1e-6)
        np.testing.assert_allclose(engine.parameters()["bn.variance"], variance, rtol=1e-5)


def test_padding_leaves_no_trace(tmp_path: Path, shape: tuple[int, ...]) -> None:
    bundle = build(network(shape), tmp_path / "b", loss="mse")
    short, padded = trained(bundle, 0.01), trained(bundle, 0.01)
    x, y = batch(5)
    rows, labels = np.full((8, 4), 7, np.float32), np.zeros((8, 2), np.float32)
    rows[:5], labels[:5] = x, y
    weights = (np.arange(8) < 5).astype(np.float32)
    for _ in range(3):
        assert padded.step(rows, labels, weights=weights).loss == pytest.approx(
            short.step(x, y).loss, rel=1e-5
        )
    for name, value in short.parameters().items():
        np.testing.assert_allclose(padded.parameters()[name], value, atol=1e-5, err_msg=name)


def test_evaluation_and_export_use_the_running_statistics(tmp_path: Path, shape: tuple[int, ...]) -> None:
    engine = trained(build(network(shape), tmp_path / "b", loss="mse"), 0.01)
    for seed in range(20):
        engine.step(*batch(seed=seed))
    x, y = batch(1, seed=50)
    engine.export(tmp_path / "m.onnx")
    error = float(((InferenceModel(tmp_path / "m.onnx").predict(x) - y) ** 2).mean())
    assert engine.evaluate(x, y) == pytest.approx(error, rel=1e-5)
    found = engine.parameters()
    h = (x @ found["w"]).reshape(1, shape[0], -1)
    normal = (h - found["bn.mean"][:, None]) / np.sqrt(found["bn.variance"][:, None] + EPSILON)
    normal = normal * found["bn.scale"][:, None] + found["bn.bias"][:, None]
    expected = ((np.tanh(normal.reshape(1, -1)) @ found["v"] - y) ** 2).mean()
    assert error == pytest.approx(float(expected), rel=1e-4)


def test_one_number_for_each_channel_teaches_no_variance(tmp_path: Path) -> None:
    engine = trained(build(network(), tmp_path / "b", loss="mse"), 0.01)
    before = engine.parameters()
    assert engine.step(*batch(1)).applied
    after = engine.parameters()
    for name in ("bn.mean", "bn.variance"):
        np.testing.assert_array_equal(after[name], before[name])
    assert all(np.isfinite(value).all() for value in after.values())


def test_a_bad_batch_leaves_the_statistics(tmp_path: Path) -> None:
    engine = trained(build(network(), tmp_path / "b", loss="mse"), 0.01)
    before = engine.parameters()
    x, y = batch()
    x[2, 1] = np.nan
    assert not engine.step(x, y).applied
    assert all(value.tobytes() == before[name].tobytes() for name, value in engine.parameters().items())


def test_an_export_in_training_mode_is_the_same_network(tmp_path: Path) -> None:
    bundles = [
        build(network(training=training), tmp_path / str(training), loss="mse") for training in (False, True)
    ]
    engines = [trained(bundle, 0.01) for bundle in bundles]
    losses = [engine.step(*batch()).loss for engine in engines]
    assert losses[0] == losses[1]
    plain, other = (engine.parameters() for engine in engines)
    assert {n: v.tobytes() for n, v in plain.items()} == {n: v.tobytes() for n, v in other.items()}


def test_the_native_engine_is_refused_and_the_reason_said(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"node bn: operator BatchNormalization .*left behind"):
        build(network(), tmp_path / "b", loss="mse", engine="native")
    notes: list[str] = []
    build(network(), tmp_path / "b", loss="mse", add_note=notes.append)
    assert notes == ["running statistics are frozen, no gradient trains them: bn.mean, bn.variance"]


def test_running_statistics_are_never_trained(tmp_path: Path) -> None:
    bundle = build(network(), tmp_path / "b", loss="mse", train=["bn.*", "v"])
    assert bundle.trainable == ("bn.scale", "bn.bias", "v")
    assert bundle.frozen == ("w", "bn.mean", "bn.variance")


@pytest.mark.parametrize("frozen", ["bn.*", "bn.scale|bn.bias"])
def test_frozen_it_is_the_same_arithmetic_in_training_and_evaluation(
    tmp_path: Path, shape: tuple[int, ...], frozen: str
) -> None:
    bundle = build(network(shape), tmp_path / "b", loss="mse", optimizer="sgd", freeze=frozen.split("|"))
    x, y = batch()
    engine = open_engine("portable", bundle)
    engine.begin(LearningRate(1.0))
    before, judged = engine.parameters(), engine.evaluate(x, y)
    assert engine.step(x, y).loss == pytest.approx(judged, rel=1e-5)
    after = engine.parameters()
    for fixed in bundle.frozen:
        np.testing.assert_array_equal(after[fixed], before[fixed])
    engine.export(tmp_path / "m.onnx")
    error = ((InferenceModel(tmp_path / "m.onnx").predict(x) - y) ** 2).mean()
    assert engine.evaluate(x, y) == pytest.approx(float(error), rel=1e-4)
    assert_equal(*both_gradients(network(shape), tmp_path, freeze=frozen.split("|")))


def test_the_base_model_keeps_the_operator_and_the_names(tmp_path: Path) -> None:
    bundle = build(network(training=True), tmp_path / "b", loss="mse", freeze=["bn.*"])
    graph = onnx.load(str(bundle.inference_model)).graph
    node = next(node for node in graph.node if node.op_type == "BatchNormalization")
    assert (list(node.output), [item.name for item in node.attribute]) == (
        ["normal"],
        ["epsilon", "momentum"],
    )
    assert {tensor.name for tensor in graph.initializer} >= {*TRAINED, "bn.mean", "bn.variance"}
    assert all(tensor.data_type in (TensorProto.FLOAT, TensorProto.INT64) for tensor in graph.initializer)


def test_where_the_batch_is_not_first_it_is_refused(tmp_path: Path) -> None:
    turned = network()
    turned.graph.initializer[-1].CopyFrom(numpy_helper.from_array(np.array([-1, 2], np.int64), "to"))
    turned.graph.node.insert(3, helper.make_node("Reshape", ["normal", "back"], ["rows"]))
    turned.graph.initializer.append(numpy_helper.from_array(np.array([-1, 4], np.int64), "back"))
    turned.graph.node[4].input[0] = "rows"
    for tensor in turned.graph.initializer:
        if tensor.name.startswith("bn."):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:2], tensor.name))
    with pytest.raises(BundleError, match=r"node bn: .*its first axis is not the batch.*freeze"):
        build(turned, tmp_path / "b", loss="mse", engine="portable")
    assert build(turned, tmp_path / "b", loss="mse", freeze=["bn.*"]).frozen[:2] == ("bn.scale", "bn.bias")


def test_without_parameters_it_does_as_the_layers_before_it(tmp_path: Path) -> None:
    plain = network((2, 2))
    for name, value in (("bn.scale", 1), ("bn.bias", 0)):
        tensor = next(item for item in plain.graph.initializer if item.name == name)
        plain.graph.initializer.remove(tensor)
        constant = numpy_helper.from_array(np.full(2, value, np.float32))
        plain.graph.node.insert(0, helper.make_node("Constant", [], [name], value=constant))
    (bundle,) = built_for_each(plain, tmp_path, loss="mse", optimizer="sgd").values()
    x, y = batch()
    engine = trained(bundle)
    before = engine.parameters()
    fixed = {"bn.scale": np.ones(2), "bn.bias": np.zeros(2)}
    at = {name: before[name] for name in ("w", "v")}
    engine.step(x, y)
    after = engine.parameters()
    expected = numerical(lambda point: loss_of({**point, **fixed}, x, y, np.ones(6), 2), at)
    assert_equal(expected, {name: before[name] - after[name] for name in at})
    assert (after["bn.mean"] != before["bn.mean"]).all()
    assert tuple(built_for_each(plain, tmp_path, loss="mse", train=["v"])) == ENGINES
