"""Dropout: masks that belong to the update, none outside of training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edged.bundles.inspect import verify
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.errors import BundleError
from tests.building import build
from tests.bundles.models import model
from tests.installed import ENGINES, built_for_each

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.storage.models.bundles import Bundle

RATIO = 0.25
W, V = (np.random.default_rng(4).standard_normal(shape).astype(np.float32) for shape in ((4, 12), (12, 2)))
# What is dropped: rows of numbers, rows of tables, a sequence with time first, rows that became more.
FORMS: dict[str, list[tuple[str, list[int]]]] = {
    "rows": [],
    "tables": [("Reshape", [-1, 3, 4])],
    "time first": [("Reshape", [-1, 3, 4]), ("Transpose", [1, 0, 2])],
    "parts of rows": [("Reshape", [-1, 4])],
}


def network(form: str = "rows", *, ratio: float = RATIO, training: bool | None = True) -> onnx.ModelProto:
    """MatMul → Dropout in some form → back → MatMul; linear but for the mask."""
    constants = [numpy_helper.from_array(np.float32(ratio), "ratio")]
    inputs = ["ratio"]
    if training is not None:
        constants.append(numpy_helper.from_array(np.array(training), "training"))
        inputs.append("training")
    there, back, at = [], [], "h"
    for i, (operator, sizes) in enumerate(FORMS[form]):
        if operator == "Reshape":
            constants += [numpy_helper.from_array(np.array(sizes, np.int64), f"to{i}")]
            constants += [numpy_helper.from_array(np.array([-1, 12], np.int64), f"from{i}")]
            there.append(helper.make_node("Reshape", [at, f"to{i}"], [f"there{i}"]))
            back.append(helper.make_node("Reshape", [f"back{i + 1}", f"from{i}"], [f"back{i}"]))
        else:
            there.append(helper.make_node("Transpose", [at], [f"there{i}"], perm=sizes))
            back.append(helper.make_node("Transpose", [f"back{i + 1}"], [f"back{i}"], perm=sizes))
        at = f"there{i}"
    dropped = f"back{len(there)}"
    nodes = [
        helper.make_node("MatMul", ["input", "w"], ["h"]),
        *there,
        helper.make_node("Dropout", [at, *inputs], [dropped, "mask"], name="drop"),
        *back[::-1],
        helper.make_node("MatMul", ["back0", "v"], ["output"]),
    ]
    parameters = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(V, "v")]
    return model(nodes, [*parameters, *constants])


@pytest.fixture(params=FORMS)
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Bundle:
    return build(network(request.param), tmp_path / "b", loss="mse", optimizer="sgd")


def opened(bundle: Bundle, rate: float = 0.01) -> Engine:
    engine = open_engine("portable", bundle)
    engine.begin(LearningRate(rate))
    return engine


def batch(rows: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((rows, 4)).astype(np.float32), np.zeros((rows, 2), np.float32)


def mean_square(h: np.ndarray) -> float:
    return float(((h @ V) ** 2).mean())


def test_the_same_update_draws_the_same_mask_and_every_update_another(bundle: Bundle) -> None:
    one, other = opened(bundle, 0.0), opened(bundle, 0.0)
    x, y = batch()
    losses = [one.step(x, y).loss for _ in range(5)]
    assert [other.step(x, y).loss for _ in range(5)] == losses
    assert len(set(losses)) == 5


def test_an_interrupted_run_goes_on_with_the_masks_it_would_have_had(tmp_path: Path) -> None:
    bundle = build(network(), tmp_path / "b", loss="mse")
    whole, first, second = (opened(bundle) for _ in range(3))
    for _ in range(4):
        whole.step(*batch())
    for engine in (first, second):
        if engine is second:
            (tmp_path / "s").mkdir()
            first.save(tmp_path / "s")
            second.restore(tmp_path / "s")
        for _ in range(2):
            engine.step(*batch())
    kept = {name: value.tobytes() for name, value in whole.parameters().items()}
    assert {name: value.tobytes() for name, value in second.parameters().items()} == kept


def test_a_gradient_goes_through_what_was_kept_alone(bundle: Bundle) -> None:
    """One row, and the identity: what a step takes off W tells the mask, what it takes off V as well."""
    engine = opened(bundle, 1.0)
    x, y = np.array([[1, 2, -1, 0.5]], np.float32), np.ones((1, 2), np.float32)
    before = engine.parameters()
    step = engine.step(x, y)
    after = engine.parameters()
    h = x @ W
    factors = ((before["v"] - after["v"]) / h.T).any(1) / (1 - RATIO)
    error = 2 * ((h * factors) @ V - y) / 2
    assert step.loss == pytest.approx(float(((h * factors) @ V - y).__pow__(2).mean()), rel=1e-5)
    np.testing.assert_allclose(before["v"] - after["v"], (h * factors).T @ error, atol=1e-5)
    np.testing.assert_allclose(before["w"] - after["w"], x.T @ ((error @ V.T) * factors), atol=1e-5)


def test_over_many_masks_it_is_as_without(bundle: Bundle) -> None:
    """The mean output is the one without dropout; so the mean gradient of V for a linear loss is too."""
    engine = opened(bundle, 0.0)
    x, y = batch(1)
    losses = [engine.step(x, y).loss for _ in range(4000)]
    h = x @ W
    spread = (h**2 * RATIO / (1 - RATIO)) @ V**2
    assert np.mean(losses) == pytest.approx(mean_square(h) + float(spread.mean()), rel=0.05)


def test_outside_of_training_there_is_none(bundle: Bundle, tmp_path: Path) -> None:
    engine, (x, y) = opened(bundle), batch()
    assert engine.evaluate(x, y) == pytest.approx(mean_square(x @ W), rel=1e-5)
    np.testing.assert_allclose(InferenceModel(bundle.inference_model).predict(x), x @ W @ V, rtol=1e-4)
    graph = onnx.load(str(bundle.inference_model)).graph
    assert "Dropout" not in {node.op_type for node in graph.node}
    engine.step(x, y)
    engine.export(tmp_path / "m.onnx")
    found = engine.parameters()
    expected = x @ found["w"] @ found["v"]
    np.testing.assert_allclose(InferenceModel(tmp_path / "m.onnx").predict(x), expected, rtol=1e-4)


def test_batches_of_every_size_take_turns(bundle: Bundle) -> None:
    engine = opened(bundle)
    assert all(engine.step(*batch(rows)).applied for rows in (1, 7, 64, 2, 7))


def test_the_bundle_passes_its_own_check(bundle: Bundle) -> None:
    assert verify(bundle.path).ok


@pytest.mark.parametrize("training", [None, False])
def test_exported_for_inference_it_is_nothing(tmp_path: Path, training: bool | None) -> None:
    bundles = built_for_each(network(training=training), tmp_path, loss="mse")
    assert tuple(bundles) == ENGINES
    x, y = batch()
    for name, each in bundles.items():
        assert open_engine(name, each).step(x, y).loss == pytest.approx(mean_square(x @ W), rel=1e-5)


def test_the_native_engine_is_refused_because_a_resumed_run_would_differ(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"node drop: operator Dropout draws numbers .*--engine portable"):
        build(network(), tmp_path / "b", loss="mse", engine="native")


def test_what_makes_no_sense_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"node drop: operator Dropout .*ratio"):
        build(network(ratio=1.0), tmp_path / "b", loss="mse")
    read = network()
    read.graph.node[1].output[1] = "mask"
    read.graph.node.insert(2, helper.make_node("Cast", ["mask"], ["number"], to=1))
    read.graph.node.insert(3, helper.make_node("Mul", ["back0", "number"], ["twice"]))
    read.graph.node[4].input[0] = "twice"
    with pytest.raises(BundleError, match=r"node drop: .*its mask is read"):
        build(read, tmp_path / "b", loss="mse")
    weights = network()
    weights.graph.node[1].input[0], weights.graph.node[0].input[1] = "w", "back0"
    weights.graph.node[2].input[0] = "h"
    weights.graph.node.insert(0, weights.graph.node.pop(1))
    with pytest.raises(BundleError, match=r"node drop: .*does not grow with the batch"):
        build(weights, tmp_path / "b", loss="mse")
