import numpy as np
import pytest

from edged.domain.judging.quality_drop import QualityDrop


def told(errors: list[float] | np.ndarray[tuple[int], np.dtype[np.float64]], batch: int = 7) -> list[int]:
    """Positions at which a fall was told."""
    fall, values = QualityDrop(), np.asarray(errors, np.float64)
    return [i for i in range(0, len(values), batch) if fall.add(values[i : i + batch])]


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3, 0.5])
def test_a_stream_that_stays_as_it_is_never_falls(rate: float) -> None:
    assert told((np.random.default_rng(1).random(50_000) < rate).astype(float)) == []


@pytest.mark.parametrize(("before", "after"), [(0.02, 0.4), (0.1, 0.5), (0.3, 0.75)])
def test_a_fall_is_told_once_and_within_a_hundred_labels(before: float, after: float) -> None:
    rng = np.random.default_rng(2)
    errors = np.concatenate([rng.random(3000) < before, rng.random(3000) < after]).astype(float)
    (at,) = told(errors)
    assert 3000 < at < 3110


def test_a_rise_of_quality_is_no_fall() -> None:
    rng = np.random.default_rng(3)
    assert told(np.concatenate([rng.random(2000) < 0.5, rng.random(2000) < 0.05]).astype(float)) == []


def test_a_perfect_model_may_err_now_and_then() -> None:
    errors = np.zeros(5000)
    errors[::400] = 1.0
    assert told(errors) == []


def test_errors_that_are_no_numbers_count_for_nothing() -> None:
    errors = np.zeros(2000)
    errors[::3] = np.nan
    assert told(errors) == []


def test_errors_of_values_fall_too_and_batches_make_no_difference() -> None:
    rng = np.random.default_rng(4)
    errors = np.concatenate([rng.exponential(5.0, 2000), rng.exponential(25.0, 1000)])
    assert len(told(errors)) == 1
    assert abs(told(errors)[0] - told(errors, 300)[0]) < 300


def test_by_how_much_errors_have_risen_is_known_after_a_look() -> None:
    fall = QualityDrop()
    fall.add(np.tile([0.0, 0.0, 0.0, 1.0], 125))
    assert fall.rise == pytest.approx(0.0, abs=0.1)
    assert fall.add(np.ones(60))
    assert fall.rise > 1.0
    sure = QualityDrop()
    sure.add(np.zeros(500))
    assert sure.rise == 0.0
    assert sure.add(np.ones(60))
    assert sure.rise == np.inf
