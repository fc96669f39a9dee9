import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edged.domain.drift.two_sample import Cells, any_differs, correlation_time, holm, ks_distance, ks_p_value

few_values = arrays(np.float64, st.integers(1, 30), elements=st.integers(0, 6).map(float))


@given(few_values, few_values)
def test_the_distance_is_the_largest_gap_of_the_distribution_functions(
    a: np.ndarray[tuple[int], np.dtype[np.float64]], b: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> None:
    gap = max(abs((a <= v).mean() - (b <= v).mean()) for v in range(7))
    assert ks_distance(np.sort(a), np.sort(b)) == pytest.approx(gap)
    assert ks_distance(np.sort(b), np.sort(a)) == pytest.approx(gap)


@pytest.mark.parametrize(
    ("distance", "n", "m", "exact"),
    # scipy.stats.ks_2samp(method="exact") of samples with that distance
    [
        (0.24, 50, 50, 0.1124),
        (0.4, 50, 50, 5.823e-4),
        (0.2025, 400, 100, 2.527e-3),
        (0.11, 1000, 500, 6.058e-4),
        (0.3, 200, 100, 9.908e-6),
    ],
)
def test_p_values_are_those_of_the_exact_distribution(distance: float, n: int, m: int, exact: float) -> None:
    assert ks_p_value(distance, n, m) == pytest.approx(exact, rel=0.3)


def test_no_distance_is_no_evidence() -> None:
    assert ks_p_value(0.0, 100, 100) == 1.0
    assert ks_p_value(1.0, 1000, 1000) < 1e-300


def test_the_index_is_that_of_the_textbook() -> None:
    reference = np.repeat([0.0, 1.0], [800, 200])
    recent = np.repeat([0.0, 1.0], [500, 500])
    by_hand = (0.5 - 0.8) * np.log(0.5 / 0.8) + (0.5 - 0.2) * np.log(0.5 / 0.2)
    assert Cells(reference).psi(recent) == pytest.approx(by_hand, rel=0.01)


def test_the_index_is_small_for_the_same_and_large_for_another() -> None:
    rng = np.random.default_rng(0)
    cells = Cells(np.sort(rng.normal(size=1000)))
    assert cells.psi(np.sort(rng.normal(size=500))) < 0.1
    assert cells.psi(np.sort(rng.normal(1, 1, size=500))) > 0.25


@pytest.mark.parametrize("moved", [-1.0, 1.0, 1e-6])
def test_a_constant_that_moves_is_noticed_wherever_it_goes(moved: float) -> None:
    assert Cells(np.zeros(1000)).psi(np.full(500, moved)) > 1
    assert Cells(np.zeros(1000)).psi(np.zeros(500)) < 1e-3


def test_correction_for_many_features_keeps_their_order() -> None:
    corrected = holm(np.array([0.2, 0.001, 0.02, 0.9]))
    np.testing.assert_allclose(corrected, [0.4, 0.004, 0.06, 0.9])


def test_neighbouring_readings_that_resemble_each_other_count_less() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=4096)
    assert correlation_time(noise) < 2
    wave = np.zeros(4096)
    for i in range(1, 4096):
        wave[i] = 0.9 * wave[i - 1] + noise[i]
    assert 8 < correlation_time(wave) < 40  # 19 in theory: (1 + 0.9) / (1 - 0.9)
    assert correlation_time(np.ones(100)) == 1.0
    assert correlation_time(noise[:3]) == 1.0


def rows(seed: int, shift: float = 0.0, n: int = 200) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal([0, shift, 0], size=(n, 3)).astype(np.float32)


def test_a_feature_that_moved_differs() -> None:
    assert any_differs(rows(0), rows(1, 1.5))
    assert not any_differs(rows(0), rows(1))
    assert not any_differs(rows(0, n=10), rows(1, 9.0)), "ten rows say nothing"


def test_chance_makes_samples_differ_seldom() -> None:
    found = [any_differs(rows(2 * i, n=60), rows(2 * i + 1)) for i in range(300)]
    assert np.mean(found) < 0.03
