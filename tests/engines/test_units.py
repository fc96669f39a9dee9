"""From raw units to raw units: targets and readings of any size are learned and served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.bundles.graph.templates import autoencoder, mlp
from edged.bundles.source.standardise import Statistics
from edged.domain.protocols import LearningRate
from edged.engines.inference import InferenceModel
from edged.engines.portable.engine import PortableEngine
from tests.building import build

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle

RNG = np.random.default_rng(5)
LATENT = RNG.standard_normal((512, 2))
# Pressure in pascal, temperature in kelvin, a ratio: sizes that differ by seven orders of magnitude.
X = (np.stack([LATENT[:, 0], LATENT[:, 1], LATENT.sum(1)], 1) * [2e3, 4, 1e-4] + [1e5, 300, 2e-3]).astype(
    np.float32
)
Y = (1e4 + 500 * LATENT[:, :1] - 200 * LATENT[:, 1:]).astype(np.float32)


def moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values.mean(0), 1 / values.std(0)


def trained(engine: PortableEngine, y: np.ndarray, path: Path, steps: int = 600) -> np.ndarray:
    engine.begin(LearningRate(0.01, total=steps))
    for i in range(steps):
        rows = np.arange(i * 64, i * 64 + 64) % len(X)
        engine.step(X[rows], y[rows])
    engine.export(path)
    return InferenceModel(path).predict(X)


@pytest.mark.parametrize("loss", ["mse", "l1"])
@pytest.mark.parametrize("fitted_later", [False, True])
def test_a_regression_in_raw_units(tmp_path: Path, loss: str, fitted_later: bool) -> None:
    mean, scale = moments(X)
    target_mean, target_scale = moments(Y)
    given = Statistics(mean, scale, target_mean, target_scale)
    statistics = Statistics.identity(3, 1) if fitted_later else given
    bundle = build(mlp(3, 1, (32,), output="y"), tmp_path / "b", loss=loss, standardise=statistics)
    engine = fitted(bundle, given, tmp_path / "later") if fitted_later else PortableEngine(bundle)
    predicted = trained(engine, Y, tmp_path / "m.onnx")
    assert np.abs(predicted - Y).mean() < 0.03 * Y.std()
    difference = (predicted - Y) * target_scale
    judged = np.abs(difference).mean() if loss == "l1" else (difference**2).mean()
    assert engine.evaluate(X, Y) == pytest.approx(float(judged), abs=1e-5)


def fitted(bundle: Bundle, statistics: Statistics, path: Path) -> PortableEngine:
    """An engine that goes on from statistics that another one was given, as after a first training run."""
    engine, resumed = PortableEngine(bundle), PortableEngine(bundle)
    names = ("input.mean", "input.scale", "target.mean", "target.scale")
    values = (statistics.mean, statistics.scale, statistics.target_mean, statistics.target_scale)
    engine.set_parameters({n: np.asarray(v, np.float32) for n, v in zip(names, values, strict=True)})
    path.mkdir()
    engine.save(path)
    resumed.restore(path)
    return resumed


def test_a_reconstruction_weighs_all_units_alike(tmp_path: Path) -> None:
    mean, scale = moments(X)
    statistics = Statistics(mean, scale, reconstruct=True)
    engine = PortableEngine(
        build(autoencoder(3, (16,), 2), tmp_path / "b", loss="mse", standardise=statistics)
    )
    rebuilt = trained(engine, X, tmp_path / "m.onnx", 1000)
    errors = np.abs(rebuilt - X).mean(0) * scale
    assert errors.max() < 0.15, "two latent values explain all three readings"
    judged = (((rebuilt.astype(np.float64) - X) * scale) ** 2).mean()
    assert engine.evaluate(X, X) == pytest.approx(judged, abs=1e-5)


def test_an_absurd_reading_does_not_fill_the_loss_of_a_reconstruction(tmp_path: Path) -> None:
    statistics = Statistics(*moments(X), reconstruct=True)
    engine = PortableEngine(
        build(autoencoder(3, (16,), 2), tmp_path / "b", loss="mse", standardise=statistics)
    )
    absurd = X[:8].copy()
    absurd[0, 0] = 1e12
    assert engine.evaluate(absurd, absurd) < 100
