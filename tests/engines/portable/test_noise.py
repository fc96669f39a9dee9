"""Noise and running statistics: what a rule may ask for besides the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.bundles.autodiff.tape import BACKWARD, Adjoint, Tape
from edged.domain.protocols import LearningRate
from edged.engines.inference import InferenceModel
from edged.engines.portable.engine import PortableEngine
from edged.errors import BundleError
from tests.building import build
from tests.bundles.models import chain

if TYPE_CHECKING:
    import onnx

    from edged.storage.models.bundles import Bundle

RNG = np.random.default_rng(5)
ROWS = [
    (RNG.standard_normal((8, 4)).astype(np.float32), RNG.standard_normal((8, 2)).astype(np.float32))
    for _ in range(8)
]
MOMENTUM = 0.75


def noisy_relu(node: onnx.NodeProto, gradients: Sequence[Adjoint], t: Tape) -> list[Adjoint]:
    """The gradient times noise instead of the slope; the last bias follows the mean of the noise."""
    first, second = t.noise(1), t.noise(3)
    noise = t.add("Concat", [first, second], axis=1)
    old = t.add("Mul", ["fc2.bias", t.number(MOMENTUM)])
    mean = t.add("ReduceMean", [noise], keepdims=0)
    new = t.add("Mul", [mean, t.number(1 - MOMENTUM)])
    t.remember("fc2.bias", t.add("Add", [old, new]))
    return [t.times(gradients[0], noise, t.dims(node.output[0], node))]


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.setitem(BACKWARD, "Relu", noisy_relu)
    return build(
        chain(), tmp_path / "b", loss="mse", freeze=["fc2.bias"], optimizer="sgd", engine="portable", seed=3
    )


def opened(bundle: Bundle) -> PortableEngine:
    engine = PortableEngine(bundle)
    engine.begin(LearningRate(0.1))
    return engine


def state(engine: PortableEngine) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in engine.parameters().items()}


def bias(engine: PortableEngine) -> np.ndarray:
    return engine.parameters()["fc2.bias"]


def test_two_engines_have_the_same_noise_and_every_step_another(bundle: Bundle) -> None:
    one, other = opened(bundle), opened(bundle)
    moved = []
    for x, y in ROWS:
        before = bias(one)
        one.step(x, y)
        other.step(x, y)
        moved.append((bias(one) - MOMENTUM * before)[0])
    assert state(one) == state(other)
    assert len({round(float(value), 5) for value in moved}) == len(ROWS)
    # The mean of 32 uniform numbers, a quarter of it.
    assert np.mean(moved) == pytest.approx(0.5 * (1 - MOMENTUM), abs=0.03)


def test_a_resumed_run_has_the_noise_it_would_have_had(bundle: Bundle, tmp_path: Path) -> None:
    engine, resumed = opened(bundle), opened(bundle)
    for x, y in ROWS[:4]:
        engine.step(x, y)
    (tmp_path / "s").mkdir()
    engine.save(tmp_path / "s")
    for x, y in ROWS[4:]:
        engine.step(x, y)
    resumed.restore(tmp_path / "s")
    for x, y in ROWS[4:]:
        resumed.step(x, y)
    assert state(resumed) == state(engine)


def test_running_statistics_are_accepted_with_the_step_alone(bundle: Bundle) -> None:
    engine, (x, y) = opened(bundle), ROWS[0]
    before = state(engine)
    assert not engine.step(np.full_like(x, np.nan), y).applied
    assert state(engine) == before
    engine.step(x, y, apply=False)
    engine.step(x, y, apply=False)
    assert not engine.step(np.full_like(x, np.nan), y).applied
    assert state(engine) == before
    assert engine.step(x, y).applied
    assert state(engine)["fc2.bias"] != before["fc2.bias"]


def test_running_statistics_count_every_part_of_a_batch(bundle: Bundle) -> None:
    engine, (x, y) = opened(bundle), ROWS[0]
    before = bias(engine)
    for part in range(3):
        engine.step(x, y, apply=part == 2)
    new = (bias(engine) - MOMENTUM**3 * before) / (1 - MOMENTUM**3)
    assert new == pytest.approx(0.5, abs=0.2)
    assert engine.step(x, y).applied


def test_running_statistics_are_exported(bundle: Bundle, tmp_path: Path) -> None:
    engine, (x, y) = opened(bundle), ROWS[0]
    for _ in range(3):
        engine.step(x, y)
    engine.export(tmp_path / "m.onnx")
    given = InferenceModel(tmp_path / "m.onnx").predict(x)
    assert np.mean((given - y) ** 2) == pytest.approx(engine.evaluate(x, y), rel=1e-5)


def test_only_a_frozen_parameter_can_hold_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKWARD, "Relu", noisy_relu)
    with pytest.raises(BundleError, match=r"fc2\.bias: only a frozen parameter"):
        build(chain(), tmp_path / "b", loss="mse", engine="portable")
