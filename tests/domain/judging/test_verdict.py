"""Refusal after refusal: a problem with its likely cause, until a candidate is accepted."""

from __future__ import annotations

import pytest

from edged.domain.judging.verdict import MANY, RefusalStreak, Verdict, refuse
from edged.domain.outcomes import too_few

WORSE = {"candidate_error": 0.4, "champion_error": 0.2}


@pytest.mark.parametrize(
    ("verdict", "cause"),
    [
        (Verdict(False, ("worse",), WORSE), "they are worse on the newest labels"),
        (Verdict(False, ("forgets",), WORSE, forgets=True), "they forget what earlier data taught"),
        (Verdict(False, ("loses",), WORSE | {"lost_class": 4.0}), "they lose a class"),
    ],
)
def test_the_cause_is_told_once_there_are_many_and_again_no_more(verdict: Verdict, cause: str) -> None:
    streak = RefusalStreak()
    assert [streak.record(verdict) for _ in range(MANY + 3)] == [*[False] * (MANY - 1), True, *[False] * 3]
    assert str(streak.problem).startswith(f"the last {MANY + 3} candidates were refused: {cause}")
    assert streak.record(Verdict(True, ("better",), WORSE)), "one that is accepted ends it"
    assert streak.problem is None


def test_the_cause_is_that_of_most() -> None:
    streak = RefusalStreak()
    for number in range(MANY):
        streak.record(Verdict(False, ("worse",), WORSE, forgets=number > 2))
    assert streak.cause == "they forget what earlier data taught"


def test_candidates_that_cannot_be_judged_count_and_missing_labels_do_not() -> None:
    streak = RefusalStreak()
    for _ in range(2 * MANY):
        streak.record(refuse(too_few(3, 20), holdout=3.0))
        streak.record(refuse("version 4 is pinned"))
    assert not streak.problem
    for _ in range(MANY):
        streak.record(refuse("verification failed: NaN"), failed=True)
    assert str(streak.problem).endswith("they cannot be judged: verification failed: NaN")
