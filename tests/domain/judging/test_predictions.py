from __future__ import annotations

import numpy as np
import pytest

from edged.domain.judging.predictions import LiveQuality, Predictions, QualityDrop, RecentAnswers
from edged.domain.stream.schema import Schema

SCHEMA = Schema((), 2, "classify", ("a", "b", "c"))


def made(offsets: list[int], answers: list[int], version: int = 1) -> Predictions:
    column = np.array(answers, np.float32).reshape(-1, 1)
    return Predictions(version, np.array(offsets), column, column, None)


def test_labels_join_their_own_predictions_once() -> None:
    memory = RecentAnswers(100, SCHEMA)
    memory.remember(made([5, 6, 7], [0, 1, 2], version=3))
    joined = memory.join(np.array([6, 7, 8]), np.array([[1], [0], [0]], np.float32))
    assert joined.errors.tolist() == [0.0, 1.0]
    assert joined.versions.tolist() == [3, 3]
    assert len(memory.join(np.array([6]), np.array([[1]], np.float32)).errors) == 0


def test_what_was_overwritten_is_not_joined_with_another_sample() -> None:
    memory = RecentAnswers(4, SCHEMA)
    memory.remember(made([1], [0]))
    memory.remember(made([5], [2]))
    assert len(memory.join(np.array([1]), np.array([[0]], np.float32)).errors) == 0
    assert memory.join(np.array([5]), np.array([[2]], np.float32)).errors.tolist() == [0.0]


def test_both_models_are_compared_on_the_same_samples() -> None:
    memory = RecentAnswers(100, SCHEMA)
    memory.remember(made([1, 2, 3], [0, 0, 0]))
    memory.remember_shadow(np.array([2, 3]), np.array([[1], [0]], np.float32))
    joined = memory.join(np.array([1, 2, 3]), np.array([[1], [1], [1]], np.float32))
    assert joined.errors.tolist() == [1, 1, 1]
    assert joined.beside.tolist() == [1, 1]
    assert joined.shadow.tolist() == [0, 1]


def test_live_quality_is_the_mean_of_the_newest() -> None:
    quality = LiveQuality(4)
    assert LiveQuality(4).mean is None
    quality.add(np.ones(3))
    quality.add(np.zeros(3))
    assert quality.mean == 0.25
    quality.add(np.ones(50))
    assert quality.mean == 1.0
    assert quality.count == 56


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
