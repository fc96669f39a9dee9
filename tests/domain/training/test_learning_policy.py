import pytest

from edged.domain.training.training_run import RunOptions
from edged.domain.training.triggers import LearningPolicy


def test_without_reason_nothing_is_asked_for() -> None:
    assert LearningPolicy().options(1e-3, 0.25) == RunOptions()


def test_after_a_drift_some_runs_learn_harder_and_remember_less() -> None:
    policy = LearningPolicy(rate=2.0, share=0.5, runs=2)
    policy.drifted()
    harder = RunOptions(learning_rate=2e-3, new_share=0.5)
    assert [policy.options(1e-3, 0.25) for _ in range(3)] == [harder, harder, RunOptions()]


def test_a_drift_never_lowers_the_share_of_new_rows() -> None:
    policy = LearningPolicy()
    policy.drifted()
    assert policy.options(1e-3, 0.9).new_share == 0.9


def test_after_forgetting_more_is_replayed_until_a_candidate_remembers() -> None:
    policy = LearningPolicy(least=0.05)
    shares = []
    for _ in range(4):
        policy.judged(forgets=True)
        shares.append(policy.options(1e-3, 0.25).new_share)
    assert shares == [0.125, 0.0625, 0.05, 0.05]
    policy.judged(forgets=False)
    assert policy.options(1e-3, 0.25) == RunOptions()


def test_where_answers_are_right_new_rows_count_for_less_and_a_drift_comes_before_that() -> None:
    policy = LearningPolicy(runs=1)
    shares = [policy.options(1e-3, 0.25, error).new_share or 0.25 for error in (0.0, 0.075, 0.15, 0.9)]
    assert shares == [pytest.approx(share) for share in (0.075, 0.1625, 0.25, 0.25)]
    policy.drifted()
    assert policy.options(1e-3, 0.25, 0.0).new_share == 0.5
    policy.judged(forgets=True)
    assert policy.options(1e-3, 0.25, 0.0).new_share == pytest.approx(0.075), "forgetting never raises it"
