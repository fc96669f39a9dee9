from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.judging.paired_test import EXACT, bootstrap, compare, mcnemar


@given(st.integers(0, 30), st.integers(0, 30))
def test_the_exact_test_is_the_binomial_tail(more: int, fewer: int) -> None:
    n = more + fewer
    assert mcnemar(more, fewer) == pytest.approx(sum(comb(n, k) for k in range(more, n + 1)) / 2**n, abs=1e-9)


def test_many_pairs_are_judged_as_a_few_less_are() -> None:
    half = EXACT // 2
    assert mcnemar(half + 41, half - 40) == pytest.approx(mcnemar(half + 40, half - 40), abs=2e-3)


def test_false_alarms_of_the_bootstrap_are_what_they_should_be() -> None:
    rng = np.random.default_rng(0)
    alarms = [bootstrap(rng.normal(size=60), seed)[0] < 0.1 for seed in range(300)]
    assert 0.05 < np.mean(alarms) < 0.16


def test_the_bootstrap_is_seeded_and_sees_a_difference() -> None:
    difference = np.random.default_rng(1).normal(0.5, 1.0, 60)
    worse, better = bootstrap(difference, 3)
    assert (worse, better) == bootstrap(difference, 3)
    assert better < 0.01
    assert worse > 0.99


def test_equal_models_are_neither_better_nor_worse() -> None:
    errors = np.random.default_rng(2).random(50)
    found = compare("regress", errors, errors)
    assert (found.both, found.wins, found.losses, found.gain) == (50, 0, 0, 0.0)
    assert found.p_better == found.p_worse == 1.0


def test_a_gain_of_values_is_a_share_of_the_champions_error() -> None:
    found = compare("forecast", np.full(30, 9.0), np.full(30, 10.0))
    assert found.gain == pytest.approx(0.1)
    assert found.wins == 30
