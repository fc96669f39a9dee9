"""From which confidence on an answer is as good as a label."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.training.pseudo_labels import FEWEST, PRECISION, PseudoLabels, threshold


@pytest.mark.parametrize("seed", range(5))
def test_above_the_threshold_answers_are_right_often_enough(seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1.0, 400).astype(np.float32)
    right = rng.random(400) < confidence
    limit = threshold(confidence, right)
    assert limit is not None
    sure = confidence >= limit
    assert right[sure].mean() >= PRECISION
    assert sure.sum() >= FEWEST
    below = np.unique(confidence[~sure])
    assert all(right[confidence >= lower].mean() < PRECISION for lower in below), "no lower one would do"


def test_a_model_that_is_sure_and_wrong_labels_nothing() -> None:
    confidence = np.full(200, 0.99, np.float32)
    assert threshold(confidence, np.arange(200) % 5 > 0) is None


def test_a_few_labels_decide_nothing() -> None:
    n = FEWEST - 1
    assert threshold(np.ones(n, np.float32), np.ones(n, bool)) is None
    assert threshold(np.ones(0, np.float32), np.ones(0, bool)) is None


def test_equal_confidence_counts_alike() -> None:
    confidence = np.r_[np.full(40, 0.9), np.full(40, 0.8)].astype(np.float32)
    right = np.r_[np.ones(60, bool), np.zeros(20, bool)]
    assert threshold(confidence, right) == pytest.approx(0.9)


def test_what_a_checkpoint_holds_is_the_same() -> None:
    kept = PseudoLabels(np.array([3, 9]), np.array([[1], [0]], np.float32))
    again = PseudoLabels.load(kept.dump())
    assert again is not None
    assert (again.offsets.tolist(), again.y.tolist()) == ([3, 9], [[1.0], [0.0]])
    assert PseudoLabels.load({}) is None
