"""Norms, noise, and the ledger of what updates give away."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.federated.privacy import PrivacyLedger, clipped, cost_of, epsilon_of, noised, norm
from edged.errors import ConfigError


def exact_delta(multiplier: float, epsilon: float) -> float:
    """Of one Gaussian mechanism of sensitivity 2 (Balle and Wang, 2018): no bound may promise less."""
    mu, phi = 2.0 / multiplier, NormalDist().cdf
    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@given(st.floats(0.3, 50.0), st.sampled_from([1e-3, 1e-5, 1e-8]))
def test_epsilon_is_true_and_better_than_the_simple_bound(multiplier: float, delta: float) -> None:
    rho = cost_of(multiplier)
    epsilon = epsilon_of(rho, delta)
    assert exact_delta(multiplier, epsilon) <= delta * (1 + 1e-9)
    assert epsilon < rho + 2 * math.sqrt(rho * math.log(1 / delta))


def test_without_noise_there_is_no_epsilon() -> None:
    assert math.isinf(epsilon_of(cost_of(0.0), 1e-5))
    assert epsilon_of(0.0, 1e-5) == 0.0
    with pytest.raises(ConfigError, match="between 0 and 1"):
        epsilon_of(1.0, 0.0)


def test_the_ledger_adds_up_and_refuses_what_would_pass_the_budget() -> None:
    ledger, made = PrivacyLedger(), 0
    while not ledger.refusal(4.0, 8.0, 1e-5):
        ledger, made = ledger.charged(4.0), made + 1
    assert epsilon_of(ledger.rho, 1e-5) <= 8.0 < epsilon_of(ledger.rho + cost_of(4.0), 1e-5)
    assert made == ledger.updates > 5
    assert "noise" in PrivacyLedger().refusal(0.0, 8.0, 1e-5)
    assert PrivacyLedger.from_json(ledger.to_json()) == ledger
    assert PrivacyLedger.from_json({}) == PrivacyLedger()


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20), st.floats(0.01, 50.0))
def test_clipping_keeps_the_direction_and_bounds_the_norm(numbers: list[float], bound: float) -> None:
    change = {"a": np.array(numbers, np.float32), "b": np.array([1.0], np.float32)}
    made = clipped(change, bound)
    assert norm(made) <= bound * (1 + 1e-5)
    share = min(1.0, bound / norm(change))
    np.testing.assert_allclose(made["a"], change["a"] * share, rtol=1e-4, atol=1e-30)
    assert np.array_equal(clipped(change, 0.0)["a"], change["a"])


def test_noise_has_the_deviation_that_was_asked_for() -> None:
    made = noised({"w": np.ones((100, 100), np.float32)}, 0.5, np.random.default_rng(1))["w"]
    assert made.dtype == np.float32
    assert made.mean() == pytest.approx(1.0, abs=0.02)
    assert made.std() == pytest.approx(0.5, rel=0.03)
