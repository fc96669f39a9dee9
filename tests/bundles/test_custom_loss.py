"""Losses of one's own: as good as those that are built in, on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edged.bundles.build import build
from edged.bundles.graph.templates import mlp
from edged.bundles.inspect import verify
from edged.bundles.source.standardise import Statistics
from edged.domain.protocols import LearningRate
from edged.domain.stream.schema import Schema
from edged.engines import open_engine
from edged.errors import BundleError
from edged.storage.models.bundles import Bundle
from tests.bundles.engines_agree.gradients import assert_equal, gradients, numerical
from tests.installed import ENGINES

RNG = np.random.default_rng(6)
ROWS = RNG.standard_normal((9, 5)).astype(np.float32)
VALUES = RNG.standard_normal((9, 3)).astype(np.float32)
CLASSES = RNG.integers(0, 3, 9)


def value(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def loss_model(
    nodes: list[tuple[str, str, str, dict[str, Any]]],
    label: onnx.ValueInfoProto,
    constants: dict[str, Any],
    *,
    output: list[int | str] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    made = [helper.make_node(op, i.split(), o.split(), **given) for op, i, o, given in nodes]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    takes, gives = [value("said", ["n", 3]), label], [value("each", ["n"] if output is None else output)]
    graph = helper.make_graph(made, "loss", takes, gives, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def pseudo_huber(delta: float = 0.5, opset: int = 17) -> onnx.ModelProto:
    """δ²·(√(1 + (d/δ)²) − 1), the mean over the outputs; Charbonnier et al. 1997."""
    nodes = [
        ("Sub", "said wanted", "d", {}), ("Div", "d delta", "q", {}), ("Mul", "q q", "q2", {}),
        ("Add", "q2 one", "s", {}), ("Sqrt", "s", "r", {}), ("Sub", "r one", "t", {}),
        ("Mul", "t scale", "u", {}), ("ReduceMean", "u", "each", {"axes": [1], "keepdims": 0}),
    ]  # fmt: skip
    constants = {"delta": np.float32(delta), "one": np.float32(1), "scale": np.float32(delta**2)}
    return loss_model(nodes, value("wanted", ["n", 3]), constants, opset=opset)


def cross_entropy() -> onnx.ModelProto:
    nodes = [
        ("LogSoftmax", "said", "log_prob", {"axis": 1}), ("OneHot", "wanted depth on_off", "true", {}),
        ("Mul", "log_prob true", "p", {}), ("ReduceSum", "p axis", "s", {"keepdims": 0}),
        ("Neg", "s", "each", {}),
    ]  # fmt: skip
    constants = {
        "depth": np.int64(3), "on_off": np.array([0, 1], np.float32), "axis": np.array([1], np.int64),
    }  # fmt: skip
    return loss_model(nodes, value("wanted", ["n"], TensorProto.INT64), constants)


@pytest.mark.parametrize("opset", [13, 17])
def test_a_loss_for_values(tmp_path: Path, opset: int) -> None:
    onnx.save(pseudo_huber(opset=opset), str(tmp_path / "huber.onnx"))
    bundle = build(mlp(5, 3, (8,)), tmp_path / "b", loss=tmp_path / "huber.onnx", optimizer="sgd")
    assert (bundle.loss, bundle.engines, bundle.label.name) == ("custom", ENGINES, "target")

    def by_formula(p: dict[str, np.ndarray]) -> float:
        hidden = np.maximum(ROWS @ p["layer1.weight"].T + p["layer1.bias"], 0)
        away = (hidden @ p["layer2.weight"].T + p["layer2.bias"] - VALUES) / 0.5
        return float((0.25 * (np.sqrt(1 + away**2) - 1)).mean())

    engine = open_engine("portable", bundle)
    slopes = numerical(by_formula, engine.parameters())
    for name in ENGINES:
        assert_equal(slopes, gradients(bundle, name, ROWS, VALUES))
    expected = by_formula({name: value.astype(np.float64) for name, value in engine.parameters().items()})
    assert engine.evaluate(ROWS, VALUES) == pytest.approx(expected, rel=1e-5)
    assert engine.step(ROWS, VALUES).loss == pytest.approx(expected, rel=1e-5)


def test_a_loss_for_classes_is_the_built_in_one(tmp_path: Path) -> None:
    own = build(mlp(5, 3, (8,)), tmp_path / "a", loss=cross_entropy())
    built_in = build(mlp(5, 3, (8,)), tmp_path / "b", loss="cross_entropy")
    assert own.label == built_in.label
    for name in ENGINES:
        engines = [open_engine(name, bundle) for bundle in (own, built_in)]
        for _ in range(20):
            losses = [engine.step(ROWS, CLASSES).loss for engine in engines]
            assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_its_rows_can_be_weighted(tmp_path: Path) -> None:
    from edged.engines.portable.engine import PortableEngine

    bundle = build(mlp(5, 3, (8,)), tmp_path / "b", loss=pseudo_huber(), optimizer="sgd")
    short, padded = PortableEngine(bundle), PortableEngine(bundle)
    weights = (np.arange(9) < 4).astype(np.float32)
    losses = short.step(ROWS[:4], VALUES[:4]).loss, padded.step(ROWS, VALUES, weights=weights).loss
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for name, array in short.parameters().items():
        np.testing.assert_allclose(padded.parameters()[name], array, rtol=1e-5, atol=1e-7)


def test_with_standardised_targets_it_judges_the_networks_own_units(tmp_path: Path) -> None:
    spread = np.full(3, 2, np.float32)
    statistics = Statistics(np.zeros(5, np.float32), np.ones(5, np.float32), spread, np.float32(1) / spread)
    plain = build(mlp(5, 3, (8,)), tmp_path / "p", loss=pseudo_huber())
    units = build(mlp(5, 3, (8,)), tmp_path / "u", loss=pseudo_huber(), standardise=statistics)
    losses = (
        open_engine("portable", plain).evaluate(ROWS, VALUES),
        open_engine("portable", units).evaluate(ROWS, VALUES * 2 + 2),
    )
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_bundle_fits_a_stream_and_passes_its_checks(tmp_path: Path) -> None:
    values = build(mlp(5, 3, (8,)), tmp_path / "v", loss=pseudo_huber())
    classes = build(mlp(5, 3, (8,)), tmp_path / "c", loss=cross_entropy())
    values.check_schema(Schema((), 5, "regress", targets=3))
    classes.check_schema(Schema((), 5, "classify", ("a", "b", "c")))
    for bundle in (values, classes):
        assert verify(bundle.path).ok
        assert Bundle.open(bundle.path) == bundle


def test_it_learns(tmp_path: Path) -> None:
    engine = open_engine("auto", build(mlp(5, 3, (16,)), tmp_path / "b", loss=pseudo_huber()))
    engine.begin(LearningRate(0.01))
    before = engine.evaluate(ROWS, VALUES)
    for _ in range(300):
        engine.step(ROWS, VALUES)
    assert engine.evaluate(ROWS, VALUES) < 0.1 * before


IDENTITY: list[tuple[str, str, str, dict[str, Any]]] = [
    ("ReduceMean", "said", "each", {"axes": [1], "keepdims": 0})
]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (loss_model([("Sub", "said wanted", "each", {})], value("wanted", ["n", 3]), {}, output=["n", 3]),
         r"must give the loss of every row, \(batch,\)"),
        (loss_model(IDENTITY, value("wanted", ["n"], TensorProto.DOUBLE), {}), "float32 or int64 label"),
        (loss_model(IDENTITY, value("wanted", ["n", 1], TensorProto.INT64), {}), r"classes as \(batch,\)"),
        (loss_model(IDENTITY, value("wanted", ["n", "k"]), {}), "fixed sizes but for the batch"),
        (mlp(5, 3), "two inputs, prediction and label, and one output"),
    ],
)  # fmt: skip
def test_what_is_no_loss_is_refused(tmp_path: Path, model: onnx.ModelProto, says: str) -> None:
    with pytest.raises(BundleError, match=says):
        build(mlp(5, 3), tmp_path / "b", loss=model)


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"nowhere\.onnx: cannot be read"):
        build(mlp(5, 3), tmp_path / "b", loss=tmp_path / "nowhere.onnx")
