"""When a challenger has won, and when it has no prospect any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.judging.challenger_test import FEWEST, ROWS, ChallengerTest, ContestErrors

if TYPE_CHECKING:
    from numpy.typing import NDArray


def wrong(rng: np.random.Generator, n: int, share: float) -> NDArray[np.float64]:
    """Errors of a classifier."""
    return (rng.random(n) < share).astype(np.float64)


def test_a_few_rows_decide_nothing() -> None:
    assert ChallengerTest(np.zeros(FEWEST - 1), np.ones(FEWEST - 1)).outcome("classify") == "open"


@pytest.mark.parametrize(("task", "unit"), [("classify", 1.0), ("regress", 7.0)])
def test_the_better_one_wins_and_the_worse_one_loses(task: str, unit: float) -> None:
    rng = np.random.default_rng(0)
    good, bad = unit * wrong(rng, 200, 0.1), unit * wrong(rng, 200, 0.4)
    assert ChallengerTest(good, bad).outcome(task) == "won"  # type: ignore[arg-type]
    assert ChallengerTest(bad, good).outcome(task) == "lost"  # type: ignore[arg-type]


def test_equals_are_told_apart_by_time_alone() -> None:
    rng = np.random.default_rng(1)
    contest = ChallengerTest()
    words: list[str] = []
    while not words or words[-1] == "open":
        contest.add(wrong(rng, 50, 0.2), wrong(rng, 50, 0.2))
        words.append(contest.outcome("classify"))
    assert words[-1] == "lost"
    assert len(contest.champion) <= ROWS


def test_equals_hardly_ever_win() -> None:
    rng = np.random.default_rng(2)
    won = 0
    for _ in range(200):
        contest = ChallengerTest()
        while contest.outcome("classify") == "open":
            contest.add(wrong(rng, 50, 0.2), wrong(rng, 50, 0.2))
        won += contest.outcome("classify") == "won"
    assert won <= 4


def test_errors_that_are_no_numbers_do_not_count() -> None:
    contest = ChallengerTest()
    contest.add(np.array([0.0, np.nan, 1.0]), np.array([1.0, 0.0, np.inf]))
    assert contest.dump() == ContestErrors((0.0,), (1.0,))
