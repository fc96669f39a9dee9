"""Cross-entropy with weights of classes and a class that does not count, on both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.artifacts.build import build
from edged.artifacts.cross_entropy import CrossEntropy
from edged.artifacts.templates import mlp
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.portable import PortableEngine
from edged.errors import ConfigError
from tests.commands import edged

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(8)
X = RNG.standard_normal((12, 4)).astype(np.float32)
Y = np.arange(12) % 3
WEIGHTS = (1.0, 4.0, 0.25)


def formula(
    z: np.ndarray, y: np.ndarray, loss: CrossEntropy, rows: np.ndarray | None = None
) -> tuple[float, np.ndarray]:
    """Loss and gradient to the outputs, after the operator's specification; `rows` weigh the rows besides."""
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    w = np.asarray(loss.weights or (1.0, 1.0, 1.0))[y] * (y != loss.ignored)
    w = w * (1.0 if rows is None else rows[:, 0])
    w /= w.sum()
    excess = p - np.eye(3)[y]
    return float(-(w * np.log(p[np.arange(len(y)), y])).sum()), excess * w[:, None]


@pytest.mark.parametrize("engine", ["native", "portable"])
@pytest.mark.parametrize("loss", [CrossEntropy(WEIGHTS), CrossEntropy(None, 1), CrossEntropy(WEIGHTS, 2)])
def test_loss_and_gradient_are_what_the_specification_says(
    tmp_path: Path, loss: CrossEntropy, engine: str
) -> None:
    trained = open_engine(engine, build(mlp(4, 3, ()), tmp_path / "b", loss=loss, optimizer="sgd"))
    weight = RNG.standard_normal((3, 4)).astype(np.float32)
    trained.set_parameters({"layer1.weight": weight})
    value, gradient = formula(X.astype(np.float64) @ weight.T, Y, loss)
    assert trained.evaluate(X, Y) == pytest.approx(value, rel=1e-5)
    trained.begin(LearningRate(1.0))
    assert trained.step(X, Y).loss == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(weight - trained.parameters()["layer1.weight"], gradient.T @ X, atol=1e-5)


def test_weights_of_rows_and_of_classes_go_together(tmp_path: Path) -> None:
    loss, rows = CrossEntropy(WEIGHTS, 2), RNG.uniform(0.1, 2, (12, 1)).astype(np.float32)
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
        engine = open_engine("auto", build(mlp(2, 2, (8,)), out, loss=CrossEntropy(weights)))
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
    for more, word in (
        (["--class-weights", "1,2"], "2 weights, the model has 3 outputs"),
        (["--class-weights", "1,a,2"], "no list of numbers"),
        (["--class-weights", "1,0,2"], "positive"),
        (["--ignore-index", "3"], "the model has 3 outputs"),
    ):
        answer = edged(*build_it, *more)
        assert answer.code == 2
        assert word in answer.problem


def test_other_losses_have_no_classes(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    assert edged("model", "new", "mlp", "--inputs", 4, "--outputs", 3, "-o", model).code == 0
    answer = edged("artifacts", "build", model, "-o", tmp_path / "b", "--loss", "mse", "--ignore-index", 0)
    assert "no classes to weigh" in answer.problem


def test_an_index_below_zero_is_no_class() -> None:
    with pytest.raises(ConfigError, match="no class"):
        CrossEntropy(None, -1)
