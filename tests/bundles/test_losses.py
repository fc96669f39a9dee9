"""Losses against their formulas, through the real training graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.bundles.graph.templates import mlp
from edged.domain.protocols import LearningRate
from edged.engines.portable.engine import PortableEngine
from tests.building import build

RNG = np.random.default_rng(3)
X = RNG.standard_normal((6, 4)).astype(np.float32)


def softmax_loss(z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(z))
    gradient = p.copy()
    gradient[rows, y] -= 1
    return float(-np.log(p[rows, y]).mean()), gradient / len(z)


def mse(z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    return float(((z - y) ** 2).mean()), 2 * (z - y) / z.size


def l1(z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    return float(np.abs(z - y).mean()), np.sign(z - y) / z.size


def bce(z: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    p = 1 / (1 + np.exp(-z))
    return float((np.logaddexp(0, z) - z * y).mean()), (p - y) / z.size


VALUES = RNG.standard_normal((6, 3)).astype(np.float32)
CASES: list[Any] = [
    ("cross_entropy", softmax_loss, RNG.integers(0, 3, 6)),
    ("mse", mse, VALUES),
    ("l1", l1, VALUES),
    ("bce_with_logits", bce, (VALUES > 0).astype(np.float32)),
]


def learned(path: Path, loss: str, y: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray]:
    """Loss and gradient of a linear model's weights, by one SGD step of size 1."""
    engine = PortableEngine(build(mlp(4, 3, ()), path / "b", loss=loss, optimizer="sgd"))
    engine.set_parameters({"layer1.weight": weight})
    engine.begin(LearningRate(1.0))
    step = engine.step(X, y)
    return step.loss, weight - engine.parameters()["layer1.weight"]


@pytest.mark.parametrize(("loss", "formula", "y"), CASES)
def test_loss_and_gradient_are_what_the_formula_says(
    tmp_path: Path, loss: str, formula: Any, y: np.ndarray
) -> None:
    weight = RNG.standard_normal((3, 4)).astype(np.float32)
    value, gradient = formula(X.astype(np.float64) @ weight.T, y)
    got, moved = learned(tmp_path, loss, y, weight)
    assert got == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(moved, gradient.T @ X, atol=1e-5)


def test_a_network_that_starts_at_zero_learns_binary_labels(tmp_path: Path) -> None:
    y = (VALUES > 0).astype(np.float32)
    value, gradient = bce(np.zeros((6, 3)), y)
    got, moved = learned(tmp_path, "bce_with_logits", y, np.zeros((3, 4), np.float32))
    assert got == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(moved, gradient.T @ X, atol=1e-6)


def test_saturated_logits_have_a_finite_loss_and_a_gradient(tmp_path: Path) -> None:
    weight = np.full((3, 4), 500.0, np.float32)
    value, gradient = bce(np.clip(X.astype(np.float64) @ weight.T, -600, 600), np.zeros((6, 3)))
    got, moved = learned(tmp_path, "bce_with_logits", np.zeros((6, 3), np.float32), weight)
    assert np.isfinite(got)
    assert got > 0.5 * value
    np.testing.assert_allclose(moved, gradient.T @ X, atol=1e-4)
