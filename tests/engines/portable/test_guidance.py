"""Anchor weights, against what the formula says of one step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.graph.templates import mlp
from edged.domain.protocols import Anchor, LearningRate
from edged.engines import open_engine
from edged.engines.portable.engine import PortableEngine
from edged.errors import TrainingError, UnavailableError
from tests.building import build
from tests.installed import needs_native
from tests.zoo import activated

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

RNG = np.random.default_rng(8)
ROWS = RNG.standard_normal((9, 5)).astype(np.float32)
VALUES = RNG.standard_normal((9, 3)).astype(np.float32)
CLASSES = RNG.integers(0, 3, 9)
Arrays = dict[str, np.ndarray]


def built(path: Path, loss: str, optimizer: str = "sgd", **options: Any) -> Bundle:
    return build(activated(mlp(5, 3, (8,)), "Tanh"), path, loss=loss, optimizer=optimizer, **options)


def opened(bundle: Bundle, rate: float = 1.0) -> PortableEngine:
    engine = PortableEngine(bundle)
    engine.begin(LearningRate(rate))
    return engine


def gradient(bundle: Bundle, y: np.ndarray, *guides: Any, **options: Any) -> tuple[float, Arrays]:
    """Loss of one step of gradient descent with rate 1, and what it took off every parameter."""
    engine = opened(bundle)
    engine.guide(*guides)
    before = engine.parameters()
    step = engine.step(ROWS, y, **options)
    assert step.applied
    after = engine.parameters()
    return step.loss, {name: before[name] - after[name] for name in bundle.trainable}


def assert_sum(total: Arrays, one: Arrays, other: Arrays, weight: float) -> None:
    for name, value in total.items():
        np.testing.assert_allclose(value, one[name] + weight * other[name], rtol=1e-4, atol=2e-6)


def test_an_anchor_pulls_with_its_strength(tmp_path: Path) -> None:
    bundle = built(tmp_path / "b", "mse")
    start = {name: opened(bundle).parameters()[name] for name in bundle.trainable}
    anchor = {name: RNG.standard_normal(value.shape).astype(np.float32) for name, value in start.items()}
    plain, guided = gradient(bundle, VALUES), gradient(bundle, VALUES, Anchor(anchor, 0.3))
    penalty = {name: start[name] - anchor[name] for name in start}
    assert_sum(guided[1], plain[1], penalty, 0.3)
    size = sum(float((penalty[name] ** 2).sum()) for name in start)
    assert guided[0] == pytest.approx(plain[0] + 0.5 * 0.3 * size, rel=1e-5)


def test_parameters_without_an_anchor_are_free(tmp_path: Path) -> None:
    bundle = built(tmp_path / "b", "mse")
    plain = gradient(bundle, VALUES)[1]
    only = {"layer1.bias": np.ones(8, np.float32)}
    guided = gradient(bundle, VALUES, Anchor(only, 0.5))[1]
    changed = {name for name in plain if not np.allclose(plain[name], guided[name], atol=1e-6)}
    assert changed == {"layer1.bias"}


def test_an_anchor_of_no_strength_changes_nothing_over_many_steps(tmp_path: Path) -> None:
    bundle = built(tmp_path / "b", "mse", "adamw")
    plain, guided = opened(bundle, 0.01), opened(bundle, 0.01)
    guided.guide(Anchor({name: guided.parameters()[name] for name in bundle.trainable}, 0.0))
    for _ in range(50):
        one, other = plain.step(ROWS, VALUES), guided.step(ROWS, VALUES)
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
    guided.guide()
    assert guided.step(ROWS, VALUES).loss == pytest.approx(plain.step(ROWS, VALUES).loss, rel=1e-6)


def test_the_penalty_counts_the_same_late_in_a_run_of_adamw(tmp_path: Path) -> None:
    bundle = built(tmp_path / "b", "mse", "adamw")
    engine = opened(bundle, 0.01)
    anchor = {name: value for name, value in engine.parameters().items() if name in bundle.trainable}
    for _ in range(100):
        engine.step(ROWS, VALUES)
    away = sum(float(((engine.parameters()[name] - value) ** 2).sum()) for name, value in anchor.items())
    before = engine.evaluate(ROWS, VALUES)
    engine.guide(Anchor(anchor, 5.0))
    assert engine.step(ROWS, VALUES).loss == pytest.approx(before + 2.5 * away, rel=1e-5)
    for _ in range(100):
        engine.step(ROWS, VALUES)
    back = sum(float(((engine.parameters()[name] - value) ** 2).sum()) for name, value in anchor.items())
    assert back < 0.1 * away


def test_parts_of_a_batch_add_up(tmp_path: Path) -> None:
    bundle = built(tmp_path / "b", "mse")
    anchor = Anchor({"layer2.bias": np.ones(3, np.float32)}, 0.2)
    once = gradient(bundle, VALUES, anchor)[1]
    engine = opened(bundle)
    engine.guide(anchor)
    before = engine.parameters()
    engine.step(ROWS, VALUES, apply=False)
    engine.step(ROWS, VALUES)
    for name, value in once.items():
        np.testing.assert_allclose(before[name] - engine.parameters()[name], 2 * value, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("anchor", "says"),
    [
        (Anchor({"layer9": np.ones(3, np.float32)}, 1.0), "layer9 is no trainable parameter"),
        (Anchor({"layer2.bias": np.ones(4, np.float32)}, 1.0), r"of shape \(3,\)"),
        (Anchor({"layer2.bias": np.full(3, np.nan, np.float32)}, 1.0), "must be finite"),
        (Anchor({}, -1.0), r"anchor\.strength: must be finite and 0 or more"),
    ],
)
def test_anchors_that_make_no_sense_are_refused(tmp_path: Path, anchor: Anchor, says: str) -> None:
    engine = opened(built(tmp_path / "b", "mse"))
    with pytest.raises(TrainingError, match=says):
        engine.guide(anchor)
    assert engine.step(ROWS, VALUES).applied


@needs_native
def test_the_native_engine_refuses_an_anchor(tmp_path: Path) -> None:
    native = open_engine("native", built(tmp_path / "n", "mse", engine="native"))
    native.guide()
    with pytest.raises(UnavailableError, match="knows no anchor weights"):
        native.guide(Anchor({}, 1.0))
