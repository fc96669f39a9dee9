"""How often remembered samples are drawn, by their losses."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.training.hard_examples import LARGEST, Hardness, losses

OFFSETS = np.arange(10, 1010)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_floor_and_the_mean_hold(share: float) -> None:
    found = np.random.default_rng(0).exponential(size=1000)
    drawn = Hardness(OFFSETS, found).weights(OFFSETS, share)
    assert drawn.mean() == pytest.approx(1.0)
    assert drawn.min() >= 1.0 - share
    assert (np.diff(drawn[np.argsort(found)]) >= 0).all(), "the larger the loss, the more often"


def test_one_row_cannot_take_all() -> None:
    found = np.ones(1000)
    found[3] = 1e9
    assert Hardness(OFFSETS, found).weights(OFFSETS, 1.0)[3] == LARGEST


def test_a_sample_without_a_loss_is_drawn_like_an_average_one() -> None:
    hard = Hardness(OFFSETS, np.zeros(1000))
    assert hard.weights(np.array([5, 10, 5000]), 0.5).tolist() == [1.0, 1.0, 1.0]
    assert Hardness(OFFSETS[:0], np.empty(0)).weights(OFFSETS, 0.5).tolist() == [1.0] * 1000


def test_values_are_measured_in_their_unit_and_what_is_no_number_counts_nothing() -> None:
    y = np.array([[0.0, 0.0], [1.0, 1.0]], np.float32)
    made = np.array([[2.0, 0.0], [np.nan, 1.0]], np.float32)
    assert losses("regress", made, y, np.array([1.0, 5.0], np.float32)).tolist() == [1.0, 0.0]
