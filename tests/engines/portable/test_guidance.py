"""Anchor weights and a teacher, against what the formulas say of one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.bundles.build import build
from edged.bundles.graph.templates import autoencoder, mlp
from edged.bundles.source.standardise import Statistics
from edged.domain.protocols import Anchor, Distillation, LearningRate
from edged.engines import open_engine
from edged.engines.inference import InferenceModel
from edged.engines.portable.engine import PortableEngine
from edged.errors import TrainingError, UnavailableError
from edged.storage.models.bundles import Bundle, seal
from tests.installed import needs_native

RNG = np.random.default_rng(8)
ROWS = RNG.standard_normal((9, 5)).astype(np.float32)
VALUES = RNG.standard_normal((9, 3)).astype(np.float32)
CLASSES = RNG.integers(0, 3, 9)
Arrays = dict[str, np.ndarray]


def built(path: Path, loss: str, optimizer: str = "sgd", **options: Any) -> Bundle:
    return build(mlp(5, 3, (8,), activation="tanh"), path, loss=loss, optimizer=optimizer, **options)


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


@pytest.mark.parametrize("weighing", [False, True])
def test_an_anchor_pulls_with_its_strength_and_importance(tmp_path: Path, weighing: bool) -> None:
    bundle = built(tmp_path / "b", "mse")
    start = {name: opened(bundle).parameters()[name] for name in bundle.trainable}
    anchor = {name: RNG.standard_normal(value.shape).astype(np.float32) for name, value in start.items()}
    weights = {name: RNG.uniform(0, 2, value.shape).astype(np.float32) for name, value in start.items()}
    pulled = Anchor(anchor, 0.3, weights if weighing else None)
    plain, guided = gradient(bundle, VALUES), gradient(bundle, VALUES, pulled)
    factors = {name: weights[name] if weighing else np.float32(1) for name in start}
    penalty = {name: factors[name] * (start[name] - anchor[name]) for name in start}
    assert_sum(guided[1], plain[1], penalty, 0.3)
    size = sum(float((penalty[name] * (start[name] - anchor[name])).sum()) for name in start)
    assert guided[0] == pytest.approx(plain[0] + 0.5 * 0.3 * size, rel=1e-5)


def test_parameters_without_an_anchor_are_free(tmp_path: Path) -> None:
    bundle = built(tmp_path / "b", "mse")
    plain = gradient(bundle, VALUES)[1]
    only = {"layer1.bias": np.ones(8, np.float32)}
    guided = gradient(bundle, VALUES, Anchor(only, 0.5))[1]
    changed = {name for name in plain if not np.allclose(plain[name], guided[name], atol=1e-6)}
    assert changed == {"layer1.bias"}


@pytest.mark.parametrize("loss", ["mse", "bce_with_logits"])
@pytest.mark.parametrize("standardised", [False, True])
def test_a_teacher_is_a_second_label(tmp_path: Path, loss: str, standardised: bool) -> None:
    """At temperature 1 the term is the loss with what the teacher says as label."""
    statistics = Statistics.identity(5) if standardised else None
    if standardised and loss == "mse":
        spread = np.arange(1, 4, dtype=np.float32)
        scale = np.float32(1) / spread
        statistics = Statistics(np.zeros(5, np.float32), np.ones(5, np.float32), spread, scale)
    bundle = built(tmp_path / "b", loss, standardise=statistics)
    y = VALUES if loss == "mse" else (VALUES > 0).astype(np.float32)
    teacher = RNG.standard_normal((9, 3)).astype(np.float32)
    said = teacher if loss == "mse" else 1 / (1 + np.exp(-teacher))
    plain, term = gradient(bundle, y), gradient(bundle, said.astype(np.float32))
    guided = gradient(bundle, y, None, Distillation(0.7), teacher=teacher)
    assert_sum(guided[1], plain[1], term[1], 0.7)
    assert guided[0] == pytest.approx(plain[0] + 0.7 * term[0], rel=1e-5)


def test_a_teacher_of_a_reconstruction_is_clipped_like_its_input(tmp_path: Path) -> None:
    statistics = Statistics(np.full(5, 0.1, np.float32), np.full(5, 2, np.float32), reconstruct=True)
    bundle = build(
        autoencoder(5, (8,), 2), tmp_path / "b", loss="mse", optimizer="sgd", standardise=statistics
    )
    teacher = (ROWS * 10).astype(np.float32)
    plain, term = gradient(bundle, ROWS), gradient(bundle, teacher)
    guided = gradient(bundle, ROWS, None, Distillation(0.2), teacher=teacher)
    assert_sum(guided[1], plain[1], term[1], 0.2)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_classes_are_compared_at_the_temperature(tmp_path: Path, temperature: float) -> None:
    bundle = built(tmp_path / "b", "cross_entropy")
    teacher = (3 * RNG.standard_normal((9, 3))).astype(np.float32)
    rows = np.arange(1, 10, dtype=np.float32)
    plain = gradient(bundle, CLASSES, weights=rows)
    guided = gradient(bundle, CLASSES, None, Distillation(0.5, temperature), weights=rows, teacher=teacher)
    share = (rows / rows.sum())[:, None].astype(np.float64)
    logits = InferenceModel(bundle.inference_model).predict(ROWS).astype(np.float64)
    p, q = (np.exp(v / temperature) for v in (logits, teacher.astype(np.float64)))
    p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
    term = -float((share * q * np.log(p)).sum()) * temperature**2
    assert guided[0] == pytest.approx(plain[0] + 0.5 * term, rel=1e-5)
    slope = 0.5 * temperature * (share * (p - q)).sum(0)
    assert guided[1]["layer2.bias"] - plain[1]["layer2.bias"] == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_bce_at_a_temperature_has_the_slope_of_its_loss(tmp_path: Path) -> None:
    bundle = built(tmp_path / "b", "bce_with_logits")
    y = (VALUES > 0).astype(np.float32)
    # Of numbers of its own: the slope must stand well above what float32 leaves of a difference of losses.
    teacher = (2 * np.random.default_rng(1).standard_normal((9, 3)) + 2).astype(np.float32)
    guide = Distillation(2.0, 2.5)
    slope = gradient(bundle, y, None, guide, teacher=teacher)[1]["layer2.bias"]
    losses = []
    for sign in (1, -1):
        engine = opened(bundle)
        engine.guide(None, guide)
        bias = engine.parameters()["layer2.bias"]
        engine.set_parameters({"layer2.bias": bias + np.float32(sign * 1e-2)})
        losses.append(engine.step(ROWS, y, teacher=teacher).loss)
    assert abs(slope.sum()) > 0.2
    assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(float(slope.sum()), rel=1e-3)


def test_guides_of_no_weight_change_nothing_over_many_steps(tmp_path: Path) -> None:
    bundle = built(tmp_path / "b", "mse", "adamw")
    plain, guided = opened(bundle, 0.01), opened(bundle, 0.01)
    guided.guide(Anchor(guided.parameters(), 0.0), Distillation(0.0))
    for _ in range(50):
        one, other = plain.step(ROWS, VALUES), guided.step(ROWS, VALUES, teacher=VALUES)
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
    once = gradient(bundle, VALUES, anchor, Distillation(0.5), teacher=ROWS[:, :3])[1]
    engine = opened(bundle)
    engine.guide(anchor, Distillation(0.5))
    before = engine.parameters()
    engine.step(ROWS, VALUES, apply=False, teacher=ROWS[:, :3])
    engine.step(ROWS, VALUES, teacher=ROWS[:, :3])
    for name, value in once.items():
        np.testing.assert_allclose(before[name] - engine.parameters()[name], 2 * value, rtol=1e-4, atol=2e-6)


def test_a_teacher_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    engine = opened(built(tmp_path / "b", "cross_entropy", "adamw"))
    engine.guide(None, Distillation(1.0))
    before = {name: value.tobytes() for name, value in engine.parameters().items()}
    assert not engine.step(ROWS, CLASSES, teacher=np.full((9, 3), np.nan, np.float32)).applied
    assert {name: value.tobytes() for name, value in engine.parameters().items()} == before
    assert engine.step(ROWS, CLASSES, teacher=VALUES).applied


def test_a_teacher_and_distillation_belong_together(tmp_path: Path) -> None:
    engine = opened(built(tmp_path / "b", "mse"))
    with pytest.raises(TrainingError, match="there is no distillation"):
        engine.step(ROWS, VALUES, teacher=VALUES)
    engine.guide(Anchor({}, 1.0))
    with pytest.raises(TrainingError, match="there is no distillation"):
        engine.step(ROWS, VALUES, teacher=VALUES)
    engine.guide(None, Distillation(1.0))
    with pytest.raises(TrainingError, match="the distillation needs them"):
        engine.step(ROWS, VALUES)
    with pytest.raises(TrainingError, match="refuses a batch"):
        engine.step(ROWS, VALUES, teacher=VALUES[:, :2])


@pytest.mark.parametrize(
    ("anchor", "distillation", "says"),
    [
        (Anchor({"layer9": np.ones(3, np.float32)}, 1.0), None, "layer9 is no trainable parameter"),
        (Anchor({"layer2.bias": np.ones(4, np.float32)}, 1.0), None, r"of shape \(3,\)"),
        (Anchor({"layer2.bias": np.full(3, np.nan, np.float32)}, 1.0), None, "must be finite"),
        (Anchor({}, -1.0), None, r"anchor\.strength: must be finite and 0 or more"),
        (None, Distillation(float("nan")), r"distillation\.weight"),
        (None, Distillation(1.0, 0.0), r"distillation\.temperature: must be finite and above 0"),
    ],
)
def test_guides_that_make_no_sense_are_refused(
    tmp_path: Path, anchor: Anchor | None, distillation: Distillation | None, says: str
) -> None:
    engine = opened(built(tmp_path / "b", "mse"))
    with pytest.raises(TrainingError, match=says):
        engine.guide(anchor, distillation)
    assert engine.step(ROWS, VALUES).applied


@needs_native
def test_what_cannot_be_guided_says_so(tmp_path: Path) -> None:
    bundle = built(tmp_path / "b", "mse")
    native = open_engine("native", bundle)
    native.guide()
    with pytest.raises(UnavailableError, match="neither anchor weights nor a teacher"):
        native.guide(None, Distillation(1.0))
    portable = {key: value for key, value in (bundle.portable or {}).items() if key != "guidance"}
    older = seal(Bundle(**{**vars(bundle), "portable": portable}), bundle.files)
    with pytest.raises(UnavailableError, match=r"no graph for anchor weights .*build the bundle again"):
        opened(older).guide(None, Distillation(1.0))
