"""Figures of continual learning, against their definitions in plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.judging.paired_test import block_bootstrap
from edged.workbench.evaluation.forgetting import backward_transfer, forgetting, forward_transfer

SKILL = np.random.default_rng(3).random((6, 6))


def test_backward_transfer_is_the_change_since_each_part_was_learned() -> None:
    expected = sum(SKILL[5, i] - SKILL[i, i] for i in range(5)) / 5
    assert backward_transfer(SKILL) == pytest.approx(expected)


def test_forward_transfer_is_the_skill_before_a_part_above_that_of_the_first_model() -> None:
    first = np.linspace(0.2, 0.4, 6)
    expected = sum(SKILL[i - 1, i] - first[i] for i in range(1, 6)) / 5
    assert forward_transfer(SKILL, first) == pytest.approx(expected)


def test_forgetting_is_the_loss_against_the_best_since_the_part() -> None:
    expected = sum(max(SKILL[j, i] for j in range(i, 5)) - SKILL[5, i] for i in range(5)) / 5
    assert forgetting(SKILL) == pytest.approx(expected)


def test_one_part_alone_transfers_and_forgets_nothing() -> None:
    one = np.ones((1, 1))
    assert (backward_transfer(one), forward_transfer(one, np.zeros(1)), forgetting(one)) == (0.0, 0.0, 0.0)


def test_the_interval_of_independent_differences_is_that_of_the_normal_law() -> None:
    difference = np.random.default_rng(0).normal(0.2, 1.0, 20_000)
    low, high = block_bootstrap(difference)
    width = 1.96 / np.sqrt(len(difference))
    assert low < difference.mean() < high
    assert (high - low) / 2 == pytest.approx(width, rel=0.15)


def test_bursts_make_the_interval_wider() -> None:
    noise = np.random.default_rng(0).normal(size=200)
    bursts = np.repeat(noise, 100)
    low, high = block_bootstrap(bursts)
    assert high - low > 5 * (2 * 1.96 * bursts.std() / np.sqrt(len(bursts)))
