"""Every optimizer against its formula in double precision, and against the native engine where it has it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from edged.bundles.graph.templates import mlp
from edged.domain.protocols import LearningRate
from edged.domain.training.optimizers import BETA1, BETA2, EPSILON, LARGEST_SCALE, PERIOD, Optimizer
from edged.engines import open_engine
from edged.engines.portable.engine import PortableEngine
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.installed import needs_native
from tests.zoo import activated

Arrays = dict[str, np.ndarray]
STEPS, RATE = 60, 0.05
CASES: list[tuple[str, dict[str, float]]] = [
    ("adamw", {}),
    ("adamw", {"weight_decay": 0.1, "clip_norm": 0.3}),
    ("adamw_pytorch", {}),
    ("adamw_pytorch", {"weight_decay": 0.3, "clip_norm": 0.1}),
    ("adamw_pytorch", {"weight_decay": 0}),
    ("sgd", {}),
    ("sgd", {"clip_norm": 0.2}),
    ("sgd", {"weight_decay": 0.1, "clip_norm": 0.2}),
    ("sgd_momentum", {}),
    ("sgd_momentum", {"momentum": 0.5, "weight_decay": 0.05, "clip_norm": 0.5}),
]


def data(steps: int = STEPS) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(4)
    xs = [rng.standard_normal((8, 3)).astype(np.float32) for _ in range(steps)]
    return [(x, (x[:, :2] * [2, -1] + 0.5).astype(np.float32)) for x in xs]


def forward_and_gradient(p: Arrays, x: np.ndarray, y: np.ndarray) -> tuple[float, Arrays]:
    """Mean square error of 3 → 4 (tanh) → 2 and its gradients, in double precision."""
    h = np.tanh(x @ p["layer1.weight"].T + p["layer1.bias"])
    d = h @ p["layer2.weight"].T + p["layer2.bias"] - y
    g = 2 * d / d.size
    t = (g @ p["layer2.weight"]) * (1 - h * h)
    gradients = (t.T @ x, t.sum(0), g.T @ h, g.sum(0))
    names = ("layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias")
    return float((d * d).mean()), dict(zip(names, gradients, strict=True))


def clip(gradients: Arrays, largest: float) -> Arrays:
    norm = np.sqrt(sum((g * g).sum() for g in gradients.values()))
    factor = min(1.0, largest / (norm + 1e-6)) if largest else 1.0
    return {name: g * factor for name, g in gradients.items()}


def moved(rule: Optimizer, p: np.ndarray, g: np.ndarray, state: Arrays, t: int) -> np.ndarray:
    """The new parameter as the definitions say it."""
    if not rule.adaptive:
        state["b"] = rule.momentum * state["b"] + g + rule.weight_decay * p
        return np.asarray(p - RATE * state["b"])
    a, b, epsilon = BETA1, BETA2, EPSILON[rule.name]
    state["m"] = m = a * state["m"] + (1 - a) * g
    state["v"] = v = b * state["v"] + (1 - b) * g * g
    keep = 1 - RATE * rule.weight_decay
    if rule.name == "adamw_pytorch":
        return np.asarray(p * keep - RATE * (m / (1 - a**t)) / (np.sqrt(v / (1 - b**t)) + epsilon))
    move = RATE * np.sqrt(1 - b**t) / (1 - a**t) * m / (np.sqrt(v) + epsilon)
    return np.asarray((p - move) * keep)


def expected(rule: Optimizer, start: Arrays) -> tuple[list[float], Arrays]:
    p = {name: value.astype(np.float64) for name, value in start.items()}
    state = {name: {moment: np.zeros_like(value) for moment in "bmv"} for name, value in p.items()}
    losses = []
    for t, (x, y) in enumerate(data(), 1):
        loss, gradients = forward_and_gradient(p, x.astype(np.float64), y.astype(np.float64))
        losses.append(loss)
        clipped = clip(gradients, rule.clip_norm)
        p = {name: moved(rule, value, clipped[name], state[name], t) for name, value in p.items()}
    return losses, p


def built(path: Path, name: str, options: dict[str, float], engine: str = "portable") -> Bundle:
    optimizer = Optimizer.of(name, **options)
    model = activated(mlp(3, 2, (4,)), "Tanh")
    return build(model, path, loss="mse", optimizer=optimizer, engine=engine)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_formula(tmp_path: Path, name: str, options: dict[str, float]) -> None:
    engine = PortableEngine(built(tmp_path / "b", name, options))
    engine.begin(LearningRate(RATE))
    losses, parameters = expected(Optimizer.of(name, **options), engine.parameters())
    got = [engine.step(x, y).loss for x, y in data()]
    np.testing.assert_allclose(got, losses, rtol=2e-5)
    for key, value in engine.parameters().items():
        np.testing.assert_allclose(value, parameters[key], rtol=1e-4, atol=2e-5, err_msg=key)


@needs_native
@pytest.mark.parametrize(
    ("name", "options"), [case for case in CASES if Optimizer.of(case[0], **case[1]).native_lack is None]
)
def test_the_native_engine(tmp_path: Path, name: str, options: dict[str, float]) -> None:
    both = [built(tmp_path / engine, name, options, engine) for engine in ("native", "portable")]
    engines = [open_engine(bundle.engine, bundle) for bundle in both]
    for engine in engines:
        engine.begin(LearningRate(RATE, warmup=5, total=90))
    for x, y in data():
        # Two halves of a batch: what is limited is the norm of their sum.
        for part in (slice(0, 4), slice(4, 8)):
            native, portable = (e.step(x[part], y[part], apply=part.start > 0) for e in engines)
            assert portable.loss == pytest.approx(native.loss, rel=2e-5)
    native_end, portable_end = (engine.parameters() for engine in engines)
    for key, value in native_end.items():
        np.testing.assert_allclose(portable_end[key], value, rtol=1e-4, atol=2e-5, err_msg=key)


@pytest.mark.parametrize("name", ["adamw", "adamw_pytorch"])
def test_moments_are_brought_back_to_their_true_scale(tmp_path: Path, name: str) -> None:
    """Around the update after which that is done, each is what the formula makes of the true moments."""
    engine, (rows, made) = PortableEngine(built(tmp_path / "b", name, {})), (tmp_path / "saved", data(6))
    rows.mkdir()
    for x, y in data(5):
        engine.step(x, y)
    engine.save(rows)
    # The same numbers at a later update are larger moments.
    position = json.loads((rows / "engine.json").read_text())
    (rows / "engine.json").write_text(json.dumps(position | {"updates": PERIOD - 3}))
    engine.restore(rows)
    engine.begin(LearningRate(RATE))
    kept = load_file(rows / "state.safetensors")
    scale = BETA2 ** (-((PERIOD - 4) % PERIOD) / 2)
    parameters = {name: value.astype(np.float64) for name, value in engine.parameters().items()}
    state = {
        name: {
            "m": kept[f"first/{name}"].reshape(value.shape) * (1 - BETA1) / scale,
            "v": kept[f"second/{name}"].reshape(value.shape) * (1 - BETA2) / scale**2,
        }
        for name, value in parameters.items()
    }
    rule = Optimizer.of(name)
    for t, (x, y) in enumerate(made, PERIOD - 2):
        _, gradients = forward_and_gradient(parameters, x.astype(np.float64), y.astype(np.float64))
        parameters = {
            key: moved(rule, value, gradients[key], state[key], t) for key, value in parameters.items()
        }
        assert engine.step(x, y).applied
        for key, value in engine.parameters().items():
            np.testing.assert_allclose(value, parameters[key], rtol=1e-4, atol=2e-5, err_msg=f"{key} {t}")
    engine.save(rows)
    resumed = PortableEngine(Bundle.open(tmp_path / "b"))
    resumed.restore(rows)
    for x, y in made:
        assert resumed.step(x, y).loss == engine.step(x, y).loss


def test_the_scale_of_gradients_stays_small() -> None:
    rule = Optimizer.of("adamw")
    scales = rule.scales(np.arange(1.0, 2 * PERIOD + 2))
    assert scales[0] == scales[PERIOD] == 1
    assert scales.max() <= LARGEST_SCALE


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_pytorch", "sgd"])
def test_a_learning_rate_of_zero_moves_no_weight(tmp_path: Path, optimizer: str) -> None:
    made = built(tmp_path / "b", optimizer, {"weight_decay": 0.1} if optimizer == "adamw" else {})
    engine, (first, second, *_) = PortableEngine(made), data()
    engine.begin(LearningRate(RATE, total=1))
    engine.step(*first)
    before = engine.parameters()
    assert engine.step(*second).applied
    assert all(before[name].tobytes() == value.tobytes() for name, value in engine.parameters().items())
