"""The weights of experts follow labels, towards who is right, also over a restart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edged.domain.judging.expert_mix import FIRST, ChangeMix, ExpertMix
from edged.domain.judging.outputs import probabilities
from edged.errors import CorruptError


def said(y: np.ndarray, right: tuple[float, ...], seed: int = 0) -> np.ndarray:
    """What experts say that are right about this often, `(n, k, 2)`."""
    rng = np.random.default_rng(seed)
    answers = [np.where(rng.random(len(y)) < share, y, 1 - y) for share in right]
    sure = np.log(np.array([[0.1, 0.9], [0.9, 0.1]]) + 1e-4)
    sure -= sure.mean(axis=1, keepdims=True)
    return np.stack([sure[1 - answer] for answer in answers], axis=1).astype(np.float32)


def test_all_count_the_same_before_a_label() -> None:
    experts = said(np.array([0, 1]), (1.0, 0.0))
    np.testing.assert_allclose(ExpertMix().combine(experts), np.zeros((2, 2)), atol=1e-6)


def test_who_is_right_counts_more_and_the_mixture_is_at_least_as_good() -> None:
    y = np.random.default_rng(1).integers(0, 2, 2000)
    experts, mix, right = said(y, (0.6, 0.95)), ExpertMix(), []
    for i, label in enumerate(y):
        right.append(mix.combine(experts[i : i + 1])[0].argmax() == label)
        mix.update(experts[i : i + 1], np.array([label]))
    assert mix.weights[1] > 4 * mix.weights[0]
    assert np.mean(right[20:]) > 0.94
    assert mix.labels == len(y)


def test_an_expert_that_misleads_counts_for_nothing_and_never_against_itself() -> None:
    y = np.random.default_rng(2).integers(0, 2, 3000)
    mix = ExpertMix()
    mix.update(said(y, (0.9, 0.1)), y)
    assert mix.weights[1] == 0


def test_it_gets_as_sure_as_it_is_right() -> None:
    """One expert that says 0.9 and is right in 7 of 10: the mixture says about 0.7."""
    y = np.random.default_rng(3).integers(0, 2, 5000)
    experts, mix = said(y, (0.7,)), ExpertMix()
    mix.update(experts, y)
    assert probabilities(mix.combine(experts)).max(axis=1).mean() == pytest.approx(0.7, abs=0.03)


def test_a_restart_changes_nothing_and_another_number_of_experts_begins_anew() -> None:
    y = np.random.default_rng(4).integers(0, 2, 100)
    experts, mix, again = said(y, (0.9, 0.6)), ExpertMix(), ExpertMix()
    mix.update(experts, y)
    again.restore(mix.state())
    assert again.combine(experts).tolist() == mix.combine(experts).tolist()
    assert again.combine(said(y, (0.9, 0.6, 0.6))).shape == (100, 2)
    assert (again.labels, again.weights.tolist()) == (0, [FIRST / 3] * 3)


@pytest.mark.parametrize(
    "state",
    [
        None, [], {}, {"weights": ["x"], "labels": 1}, {"weights": [float("nan")], "labels": 1},
        {"weights": [-1.0], "labels": 1}, {"weights": [[1.0]], "labels": 1}, {"weights": [1.0], "labels": -1},
    ],
)  # fmt: skip
def test_what_is_no_state_is_damage(state: Any) -> None:
    with pytest.raises(CorruptError, match="weights of experts"):
        ExpertMix().restore(state)


def test_a_class_that_an_earlier_network_never_had_says_nothing_about_its_experts() -> None:
    y = np.random.default_rng(5).integers(0, 2, 50)
    experts, mix = said(y, (0.9, 0.6)), ExpertMix()
    mix.update(experts, y)
    before = mix.state()
    mix.update(experts[:1], np.array([2]))
    assert mix.state() == before


RNG = np.random.default_rng(0)
LAST = RNG.normal(size=(3000, 1)).astype(np.float32)
CHANGE = RNG.normal(size=(3000, 1)).astype(np.float32)


def values_and_answers(change: np.ndarray) -> np.ndarray:
    return np.stack([LAST, LAST + change], axis=1)


def after(mix: ChangeMix, experts: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What was served, `(n, 1)`, each row before its label."""
    served = []
    for one, label in zip(experts, y, strict=True):
        served.append(mix.combine(one[None])[0])
        mix.update(one[None], label[None])
    return np.array(served)


def test_a_model_is_served_as_it_is_before_a_label() -> None:
    experts = values_and_answers(CHANGE)
    assert ChangeMix([0]).combine(experts).tolist() == experts[:, 1].tolist()
    assert ChangeMix([1]).beside(np.array([[5, 7]], np.float32), np.array([[9]], np.float32)).tolist() == [
        [[7], [9]]
    ]


def test_a_model_that_only_adds_noise_gives_way_to_the_last_value() -> None:
    mix = ChangeMix([0])
    y = LAST + RNG.normal(0, 0.2, LAST.shape).astype(np.float32)
    served = after(mix, values_and_answers(CHANGE), y)
    assert mix.shares[0] < 0.05
    assert np.abs(served - y)[100:].mean() < 1.1 * np.abs(LAST - y)[100:].mean()


def test_a_model_that_is_right_again_is_trusted_again() -> None:
    mix = ChangeMix([0])
    after(mix, values_and_answers(CHANGE), LAST)
    assert mix.shares[0] < 0.05
    after(mix, values_and_answers(CHANGE), LAST + CHANGE)
    assert mix.shares[0] > 0.95


def test_one_absurd_answer_moves_a_share_no_further_than_a_large_one() -> None:
    mixes = [ChangeMix([0]), ChangeMix([0])]
    for mix, change in zip(mixes, (100.0, 1e30), strict=True):
        after(mix, values_and_answers(CHANGE)[:200], LAST[:200] + 0.5 * CHANGE[:200])
        mix.update(np.array([[[0], [change]]], np.float32), np.zeros((1, 1), np.float32))
    assert mixes[0].state() == mixes[1].state()


def test_targets_have_shares_of_their_own_which_survive_a_restart() -> None:
    mix, again = ChangeMix([0, 1]), ChangeMix([0, 1])
    experts = np.concatenate([values_and_answers(CHANGE), values_and_answers(CHANGE)], axis=2)
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
