"""Cross-entropy with weights of classes, a class that does not count, and smoothed labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.bundles.graph.templates import mlp
from edged.bundles.inspect import inspect
from edged.bundles.losses.named import SMALL, CrossEntropy
from edged.domain.bundle_contents import Tensor
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.portable.engine import PortableEngine
from edged.errors import ConfigError
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.commands import edged
from tests.installed import ENGINES, built_for_each

RNG = np.random.default_rng(8)
X = RNG.standard_normal((12, 4)).astype(np.float32)
Y = np.arange(12) % 3
WEIGHTS = (1.0, 4.0, 0.25)
WEIGHING = [CrossEntropy(WEIGHTS), CrossEntropy(None, 1), CrossEntropy(WEIGHTS, 2)]


def formula(
    z: np.ndarray, y: np.ndarray, loss: CrossEntropy, rows: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """Loss and gradient to the outputs, after the operator's specification; `rows` weigh the rows besides."""
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    w = np.asarray(loss.weights or (1.0, 1.0, 1.0))[y] * (y != loss.ignored)
    w = w * (1.0 if rows is None else rows[:, 0])
    w /= w.sum()
    target = np.eye(3)[y] * (1 - loss.smoothing) + loss.smoothing / 3
    return float(-(w * (target * np.log(p)).sum(1)).sum()), (p - target) * w[:, None]


@pytest.mark.parametrize("engine", ["native", "portable"])
@pytest.mark.parametrize("loss", [*WEIGHING, CrossEntropy(smoothing=0.3)])
def test_loss_and_gradient_are_what_the_specification_says(
    tmp_path: Path, loss: CrossEntropy, engine: str
) -> None:
    trained = open_engine(
        engine, build(mlp(4, 3, ()), tmp_path / "b", loss=loss, optimizer="sgd", engine=engine)
    )
    weight = RNG.standard_normal((3, 4)).astype(np.float32)
    trained.set_parameters({"layer1.weight": weight})
    value, gradient = formula(X.astype(np.float64) @ weight.T, Y, loss)
    assert trained.evaluate(X, Y) == pytest.approx(value, rel=1e-5)
    trained.begin(LearningRate(1.0))
    assert trained.step(X, Y).loss == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(weight - trained.parameters()["layer1.weight"], gradient.T @ X, atol=1e-5)


@pytest.mark.parametrize("loss", [CrossEntropy(WEIGHTS, 2), CrossEntropy(smoothing=0.3)])
def test_weights_of_rows_go_together_with_it(tmp_path: Path, loss: CrossEntropy) -> None:
    rows = RNG.uniform(0.1, 2, (12, 1)).astype(np.float32)
    bundle = build(mlp(4, 3, ()), tmp_path / "b", loss=loss, optimizer="sgd", engine="portable")
    engine = PortableEngine(bundle)
    weight = engine.parameters()["layer1.weight"]
    value, gradient = formula(X.astype(np.float64) @ weight.T, Y, loss, rows)
    engine.begin(LearningRate(1.0))
    assert engine.step(X, Y, weights=rows).loss == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(weight - engine.parameters()["layer1.weight"], gradient.T @ X, atol=1e-5)


def test_a_batch_in_which_no_row_counts_changes_nothing(tmp_path: Path) -> None:
    loss = CrossEntropy(None, 1)
    bundle = build(mlp(4, 3, (5,)), tmp_path / "b", loss=loss, optimizer="sgd", engine="portable")
    engine = open_engine("portable", bundle)
    before = engine.parameters()
    engine.begin(LearningRate(1.0))
    assert engine.step(X, np.ones(12, np.int64)).loss == 0.0
    for name, value in engine.parameters().items():
        np.testing.assert_array_equal(value, before[name])


def test_rare_classes_are_answered_more_often_the_more_they_weigh(tmp_path: Path) -> None:
    y = np.where(RNG.random(400) < 0.1, 1, 0)
    x = (RNG.standard_normal((400, 2)) + y[:, None]).astype(np.float32)
    answered = []
    for weights in ((1.0, 1.0), (1.0, 9.0)):
        out = tmp_path / f"b{weights[1]:g}"
        engine = open_engine("portable", build(mlp(2, 2, (8,)), out, loss=CrossEntropy(weights)))
        engine.begin(LearningRate(0.01))
        for _ in range(200):
            engine.step(x, y)
        parameters = engine.parameters()
        hidden = np.maximum(x @ parameters["layer1.weight"].T + parameters["layer1.bias"], 0)
        answers = (hidden @ parameters["layer2.weight"].T + parameters["layer2.bias"]).argmax(1)
        answered.append(answers[y == 1].mean())
    assert answered[1] > answered[0] + 0.3


def test_the_command_takes_both(tmp_path: Path) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "b"
    assert edged("model", "new", "mlp", "--inputs", 4, "--outputs", 3, "-o", model).code == 0
    build_it = ["artifacts", "build", model, "-o", out, "--loss", "cross_entropy"]
    assert edged(*build_it, "--class-weights", "1,4,0.25", "--ignore-index", 2).code == 0
    assert edged("artifacts", "verify", out).code == 0
    told = "cross_entropy, class weights 1:4:0.25, ignore index 2, adamw"
    assert told in edged("artifacts", "inspect", out).out
    for more, word in (
        (["--class-weights", "1,2"], "2 weights, the model has 3 outputs"),
        (["--class-weights", "1,a,2"], "no list of numbers"),
        (["--class-weights", "1,0,2"], "positive"),
        (["--ignore-index", "3"], "the model has 3 outputs"),
        (["--label-smoothing", "1"], "out of range"),
        (["--label-smoothing", "0.1", "--class-weights", "1,2,3"], "all classes count the same"),
    ):
        answer = edged(*build_it, *more, "--force")
        assert answer.code == 2
        assert word in answer.problem


def test_the_command_smooths_labels(tmp_path: Path) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "b"
    assert edged("model", "new", "mlp", "--inputs", 4, "--outputs", 3, "-o", model).code == 0
    build_it = ["artifacts", "build", model, "-o", out, "--loss", "cross_entropy"]
    answer = edged(*build_it, "--label-smoothing", "0.2")
    assert (answer.code, "cross_entropy, label smoothing 0.2, adamw" in answer.out) == (0, True)
    assert edged("artifacts", "verify", out).code == 0
    assert inspect(out).loss_options.to_json() == {"label_smoothing": 0.2}
    plain = build(model, tmp_path / "plain", loss="cross_entropy")
    smooth, hard = (open_engine("portable", bundle) for bundle in (Bundle.open(out), plain))
    # The same weights come to a larger loss where no label is ever quite sure.
    x, y = X[:3] * 0, np.zeros(3, np.int64)
    for engine in (smooth, hard):
        own = engine.parameters()
        last = max(name for name in own if name.endswith(".bias"))
        weight = np.zeros_like(own[last.replace("bias", "weight")])
        engine.set_parameters({last: np.array([9, 0, 0], np.float32), last.replace("bias", "weight"): weight})
    assert hard.evaluate(x, y) < 0.01
    assert smooth.evaluate(x, y) > 1


def test_many_classes_are_smoothed_too(tmp_path: Path) -> None:
    many = SMALL + 6
    bundles = built_for_each(mlp(4, many, ()), tmp_path, loss=CrossEntropy(smoothing=0.1))
    y = np.arange(12) * 6
    x = X.astype(np.float64)
    losses = []
    for name, bundle in bundles.items():
        engine = open_engine(name, bundle)
        own = engine.parameters()
        z = x @ own["layer1.weight"].T + own["layer1.bias"]
        target = np.eye(many)[y] * 0.9 + 0.1 / many
        expected = -(target * (z - np.log(np.exp(z).sum(1, keepdims=True)))).sum(1).mean()
        losses.append(engine.evaluate(X, y))
        assert losses[-1] == pytest.approx(expected, rel=1e-5)
    assert len(losses) == len(ENGINES)


def test_other_losses_have_no_classes(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    assert edged("model", "new", "mlp", "--inputs", 4, "--outputs", 3, "-o", model).code == 0
    answer = edged("artifacts", "build", model, "-o", tmp_path / "b", "--loss", "mse", "--ignore-index", 0)
    assert "no classes to weigh" in answer.problem


def test_an_index_below_zero_is_no_class() -> None:
    with pytest.raises(ConfigError, match="no class"):
        CrossEntropy(None, -1)


def test_labels_of_more_axes_are_not_smoothed() -> None:
    with pytest.raises(ConfigError, match="more axes"):
        CrossEntropy(smoothing=0.1).label(Tensor("logits", ("batch", 3, 4)))
