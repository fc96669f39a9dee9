"""A forecast trusts its model as far as its labels say, down to repeating the last value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edged.domain.judging.expert_mix import ChangeMix
from edged.errors import CorruptError

RNG = np.random.default_rng(0)
LAST = RNG.normal(size=(3000, 1)).astype(np.float32)
CHANGE = RNG.normal(size=(3000, 1)).astype(np.float32)


def said(change: np.ndarray) -> np.ndarray:
    return np.stack([LAST, LAST + change], axis=1)


def after(mix: ChangeMix, experts: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What was served, `(n, 1)`, each row before its label."""
    served = []
    for one, label in zip(experts, y, strict=True):
        served.append(mix.combine(one[None])[0])
        mix.update(one[None], label[None])
    return np.array(served)


def test_a_model_is_served_as_it_is_before_a_label() -> None:
    experts = said(CHANGE)
    assert ChangeMix([0]).combine(experts).tolist() == experts[:, 1].tolist()
    assert ChangeMix([1]).beside(np.array([[5, 7]], np.float32), np.array([[9]], np.float32)).tolist() == [
        [[7], [9]]
    ]


def test_a_model_that_only_adds_noise_gives_way_to_the_last_value() -> None:
    mix = ChangeMix([0])
    y = LAST + RNG.normal(0, 0.2, LAST.shape).astype(np.float32)
    served = after(mix, said(CHANGE), y)
    assert mix.shares[0] < 0.05
    assert np.abs(served - y)[100:].mean() < 1.1 * np.abs(LAST - y)[100:].mean()


def test_a_model_that_is_right_again_is_trusted_again() -> None:
    mix = ChangeMix([0])
    after(mix, said(CHANGE), LAST)
    assert mix.shares[0] < 0.05
    after(mix, said(CHANGE), LAST + CHANGE)
    assert mix.shares[0] > 0.95


def test_one_absurd_answer_moves_a_share_no_further_than_a_large_one() -> None:
    mixes = [ChangeMix([0]), ChangeMix([0])]
    for mix, change in zip(mixes, (100.0, 1e30), strict=True):
        after(mix, said(CHANGE)[:200], LAST[:200] + 0.5 * CHANGE[:200])
        mix.update(np.array([[[0], [change]]], np.float32), np.zeros((1, 1), np.float32))
    assert mixes[0].state() == mixes[1].state()


def test_targets_have_shares_of_their_own_which_survive_a_restart() -> None:
    mix, again = ChangeMix([0, 1]), ChangeMix([0, 1])
    experts = np.concatenate([said(CHANGE), said(CHANGE)], axis=2)
    mix.update(experts, np.concatenate([LAST, LAST + CHANGE], axis=1))
    assert mix.shares[0] < 0.05
    assert mix.shares[1] > 0.95
    again.restore(mix.state())
    assert again.combine(experts).tolist() == mix.combine(experts).tolist()
    other = ChangeMix([0])
    other.restore(mix.state())
    assert other.shares.tolist() == [1]


@pytest.mark.parametrize(
    "state",
    [None, {}, {"weights": [0.5, 0.5], "labels": 3}, {"shares": [2], "usual": [1], "labels": 1},
     {"shares": [1], "usual": [float("nan")], "labels": 1}, {"shares": [1], "usual": [1], "labels": -1}],
)  # fmt: skip
def test_a_damaged_state_is_refused(state: Any) -> None:
    with pytest.raises(CorruptError, match="shares"):
        ChangeMix([0]).restore(state)
