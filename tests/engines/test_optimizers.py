"""Every optimizer against its formula in double precision, and against the native engine where it has it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.bundles.build import build
from edged.bundles.graph.optimizers import Optimizer
from edged.bundles.graph.templates import mlp
from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.engines.portable.engine import PortableEngine
from edged.engines.portable.optimizer import LARGEST_SCALE, OptimizerInputs
from tests.installed import needs_native

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

Arrays = dict[str, np.ndarray]
STEPS, RATE = 60, 0.05
CASES: list[tuple[str, dict[str, float]]] = [
    ("adamw", {}),
    ("adamw", {"weight_decay": 0.1, "epsilon": 1e-3}),
    ("adamw", {"beta1": 0.5, "beta2": 0.8, "clip_norm": 0.3}),
    ("adamw_pytorch", {}),
    ("adamw_pytorch", {"weight_decay": 0.3, "epsilon": 1e-2, "clip_norm": 0.1}),
    ("adamw_pytorch", {"weight_decay": 0, "beta2": 0.3}),
    ("sgd", {}),
    ("sgd", {"clip_norm": 0.2}),
    ("sgd", {"weight_decay": 0.1, "clip_norm": 0.2}),
    ("sgd_momentum", {}),
    ("sgd_momentum", {"momentum": 0.5, "weight_decay": 0.05, "clip_norm": 0.5}),
    ("sgd_momentum", {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05}),
    ("sgd_momentum", {"momentum": 0.8, "dampening": 0.6}),
    ("adamw", {"bias_correction": False, "weight_decay": 0.1}),
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
    if not rule.name.startswith("adamw"):
        g = g + rule.weight_decay * p
        state["b"] = rule.momentum * state["b"] + (1 if t == 1 else 1 - rule.dampening) * g
        move = g + rule.momentum * state["b"] if rule.nesterov else state["b"]
        return np.asarray(p - RATE * move)
    a, b = rule.alpha, rule.beta
    state["m"] = m = a * state["m"] + (1 - a) * g
    state["v"] = v = b * state["v"] + (1 - b) * g * g
    keep = 1 - RATE * rule.weight_decay
    if rule.name == "adamw_pytorch":
        move = RATE * (m / (1 - a**t)) / (np.sqrt(v / (1 - b**t)) + rule.epsilon)
        return np.asarray(p * keep - move)
    correction = np.sqrt(1 - b**t) / (1 - a**t) if rule.bias_correction else 1
    move = RATE * correction * m / (np.sqrt(v) + rule.epsilon)
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


def built(path: Path, name: str, options: dict[str, float], engine: str = "both") -> Bundle:
    optimizer = Optimizer.of(name, **options)
    model = mlp(3, 2, (4,), activation="tanh")
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
    bundle, rule = built(tmp_path / "b", name, options), Optimizer.of(name, **options)
    engines = [open_engine(engine, bundle) for engine in ("native", "portable")]
    for engine in engines:
        engine.begin(LearningRate(RATE, warmup=5, total=90))
    for x, y in data():
        # Two halves of a batch: what is limited is the norm of their sum.
        for part in (slice(0, 4), slice(4, 8)):
            native, portable = (e.step(x[part], y[part], apply=part.start > 0) for e in engines)
            # Without bias correction first steps are larger, and so is what rounding makes of them.
            assert portable.loss == pytest.approx(native.loss, rel=2e-5 if rule.bias_correction else 1e-4)
    native_end, portable_end = (engine.parameters() for engine in engines)
    for key, value in native_end.items():
        np.testing.assert_allclose(portable_end[key], value, rtol=1e-4, atol=2e-5, err_msg=key)


@needs_native
@pytest.mark.parametrize("source", ["native", "portable"])
@pytest.mark.parametrize("beta2", [0.5, 0.999])
def test_each_engine_goes_on_from_the_other(tmp_path: Path, source: str, beta2: float) -> None:
    bundle = built(tmp_path / "b", "adamw_pytorch", {"beta2": beta2})
    target = "portable" if source == "native" else "native"
    first, second = open_engine(source, bundle), open_engine(target, bundle)
    first.begin(LearningRate(RATE))
    (tmp_path / "s").mkdir()
    made = data()
    for x, y in made[:25]:
        first.step(x, y)
    first.save(tmp_path / "s")
    second.restore(tmp_path / "s")
    for x, y in made[25:]:
        assert second.step(x, y).loss == pytest.approx(first.step(x, y).loss, rel=1e-4)


@pytest.mark.parametrize("name", ["adamw_pytorch", "sgd_momentum"])
def test_it_resumes_bit_by_bit_wherever_the_scale_of_the_moments_is(tmp_path: Path, name: str) -> None:
    options = {"beta2": 0.5} if name == "adamw_pytorch" else {}
    bundle, made = built(tmp_path / "b", name, options, "portable"), data()
    for at in (19, 20, 21, 22):
        engine, resumed = PortableEngine(bundle), PortableEngine(bundle)
        folder = tmp_path / str(at)
        folder.mkdir()
        for i, (x, y) in enumerate(made):
            if i == at:
                engine.save(folder)
            engine.step(x, y)
        resumed.restore(folder)
        for x, y in made[at:]:
            resumed.step(x, y)
        mine, other = engine.parameters(), resumed.parameters()
        assert all(mine[key].tobytes() == other[key].tobytes() for key in mine)


@pytest.mark.parametrize("beta2", [1e-6, 0.5, 0.9, 0.999, 0.9999])
def test_the_scale_of_gradients_stays_small(beta2: float) -> None:
    rule = OptimizerInputs("adamw", ("value", "first", "second"), 0.9, beta2, correct_bias=True, scaled=True)
    scales = rule.scales(np.arange(1.0, 3 * rule.period + 2))
    assert scales[0] == scales[rule.period] == 1
    assert max(scales) <= LARGEST_SCALE
    for update, scale in zip(range(1, 2 * rule.period), scales, strict=False):
        # What is kept after an update is in its scale, unless it has just been brought back.
        assert rule.factors(update)[1] * (scale * scale) == pytest.approx(
            (1 - beta2) * (1 / rule.renewal(update)[1] if rule.renewal(update) else 1)
        )


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_pytorch", "sgd"])
def test_a_learning_rate_of_zero_moves_no_weight(tmp_path: Path, optimizer: str) -> None:
    made = built(tmp_path / "b", optimizer, {"weight_decay": 0.1} if optimizer == "adamw" else {})
    engine, (first, second, *_) = PortableEngine(made), data()
    engine.begin(LearningRate(RATE, total=1))
    engine.step(*first)
    before = engine.parameters()
    assert engine.step(*second).applied
    assert all(before[name].tobytes() == value.tobytes() for name, value in engine.parameters().items())
