"""Thresholds from the tail of normal scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.stream.extreme_values import SpotThreshold, tail_threshold

if TYPE_CHECKING:
    from numpy.typing import NDArray


KINDS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "exponential": lambda rng, n: rng.exponential(size=n),
    "normal": lambda rng, n: np.abs(rng.normal(size=n)),
    "lognormal": lambda rng, n: rng.lognormal(0.0, 0.5, size=n),
    "mean of errors": lambda rng, n: np.abs(rng.normal(size=(n, 8))).mean(axis=1),
    "uniform": lambda rng, n: rng.random(n),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [100, 2000])
def test_about_the_wanted_share_of_normal_scores_passes(kind: str, n: int) -> None:
    """In the mean over many calibrations: a hundred scores say little of one in a thousand."""
    rng = np.random.default_rng(0)
    fresh = KINDS[kind](rng, 200_000)
    shares = [float((fresh > tail_threshold(KINDS[kind](rng, n), 1e-3)).mean()) for _ in range(40)]
    assert np.mean(shares) < (8e-3 if n == 100 else 2e-3)
    if kind != "uniform":  # its end is beyond what the fit allows for
        assert np.mean(shares) > 2e-4


@pytest.mark.parametrize("n", [100, 2000])
def test_anomalies_among_the_scores_do_not_raise_the_threshold_beyond_them(n: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.exponential(size=n)
        odd = rng.random(n) < 0.03
        scores[odd] += rng.uniform(100, 200, int(odd.sum()))
        assert 3.0 < tail_threshold(scores, 1e-3) < 40.0


def test_a_smaller_rate_gives_a_higher_threshold() -> None:
    scores = np.random.default_rng(1).exponential(size=500)
    found = [tail_threshold(scores, rate) for rate in (0.05, 1e-2, 1e-3, 1e-4)]
    assert found == sorted(found)
    assert len(set(found)) == 4


def test_scores_that_are_all_alike_are_their_own_threshold() -> None:
    assert tail_threshold(np.full(100, 0.5), 1e-3) == 0.5


def normal_scores(rate: float = 1e-3) -> SpotThreshold:
    return SpotThreshold(rate, calibrate=100, window=2000, level=400)


def test_there_is_no_threshold_before_enough_scores() -> None:
    found = normal_scores()
    found.add(np.random.default_rng(0).random(99))
    assert found.threshold is None
    found.add(np.array([0.5]))
    assert found.threshold is not None


def test_the_threshold_follows_slow_change_and_stays_above_it() -> None:
    rng = np.random.default_rng(0)
    scores = rng.exponential(0.1, 20_000) + np.linspace(1.0, 11.0, 20_000)
    found, above = normal_scores(), 0
    for part in np.split(scores, 400):
        above += 0 if found.threshold is None else int((part > found.threshold).sum())
        found.add(part)
    assert above < 20_000 * 0.01
    assert found.threshold is not None
    assert 11.0 < found.threshold < 13.0


def test_a_restart_goes_on_with_nearly_the_same_threshold() -> None:
    first, second = normal_scores(), normal_scores()
    first.add(np.random.default_rng(0).exponential(size=900))
    second.restore(first.state())
    assert second.threshold == pytest.approx(first.threshold, rel=0.02)
    for found in (first, second):
        found.add(np.full(10, 3.0))
    assert second.threshold == pytest.approx(first.threshold, rel=0.02)


def test_a_restart_before_there_is_a_threshold_goes_on_counting() -> None:
    first, second = normal_scores(), normal_scores()
    first.add(np.random.default_rng(0).random(60))
    second.restore(first.state())
    assert second.threshold is None
    second.add(np.random.default_rng(1).random(40))
    assert second.threshold is not None
