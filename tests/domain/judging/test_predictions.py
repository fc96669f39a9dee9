import numpy as np

from edged.domain.judging.predictions import LiveQuality, Predictions, RecentAnswers
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
