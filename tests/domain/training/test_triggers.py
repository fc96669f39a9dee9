from __future__ import annotations

import pytest

from edged.domain.training.training_run import RunOptions
from edged.domain.training.triggers import FEWEST, LearningPolicy, Triggers


def decide(triggers: Triggers, new: int, monotonic: float) -> str | None:
    wanted = triggers.wanted(new)
    if wanted is None or (wanted != "command" and triggers.pause_reason(monotonic) is not None):
        return None
    triggers.begun(wanted)
    return wanted


def test_enough_new_labels_start_a_run() -> None:
    triggers = Triggers(new_labels=100)
    assert decide(triggers, 99, 0.0) is None
    assert decide(triggers, 100, 0.0) == "labels"


def test_a_schedule_with_too_little_data_is_dropped() -> None:
    triggers = Triggers(new_labels=1, labels_start=False)
    triggers.scheduled = True
    assert decide(triggers, 0, 0.0) is None
    assert decide(triggers, 60, 0.0) is None, "the missed schedule must not fire later"
    triggers.scheduled = True
    assert decide(triggers, 1, 0.0) == "schedule"


def test_a_schedule_with_fewer_labels_than_start_a_run_is_dropped() -> None:
    triggers = Triggers(new_labels=50, scheduled=True)
    assert decide(triggers, 49, 0.0) is None
    assert not triggers.scheduled
    triggers.scheduled = True
    assert decide(triggers, 50, 0.0) == "schedule"


def test_a_failure_holds_back_all_but_a_command() -> None:
    triggers = Triggers(new_labels=1)
    triggers.back_off(5.0, 8.0)
    assert (decide(triggers, 9, 12.9), decide(triggers, 9, 13.0)) == (None, "labels")
    triggers.back_off(13.0, 8.0)
    triggers.commanded = True
    assert decide(triggers, 9, 14.0) == "command"


def test_a_run_that_was_cut_off_needs_no_new_labels() -> None:
    triggers = Triggers(new_labels=500, interrupted=True)
    triggers.back_off(0.0, 1.0)
    assert decide(triggers, 0, 0.5) is None
    assert decide(triggers, 0, 1.0) == "resume"
    assert decide(triggers, 0, 2.0) is None, "once"
    triggers.interrupted = triggers.commanded = True
    assert decide(triggers, 0, 3.0) == "command"
    assert decide(triggers, 0, 4.0) is None, "the command has taken it up"


def test_a_drift_starts_a_run_with_few_labels() -> None:
    triggers = Triggers(new_labels=100)
    triggers.drifted = True
    assert decide(triggers, FEWEST - 1, 0.0) is None
    assert decide(triggers, FEWEST, 0.0) == "drift"
    assert decide(triggers, FEWEST, 0.0) is None, "it is acted on once"


def test_a_fall_of_quality_starts_a_run() -> None:
    triggers = Triggers(new_labels=100)
    triggers.fallen = True
    assert decide(triggers, FEWEST, 0.0) == "quality"


def test_a_warning_halves_what_a_run_needs_until_one_begins() -> None:
    triggers = Triggers(new_labels=100)
    triggers.warned = True
    assert decide(triggers, 49, 0.0) is None
    assert decide(triggers, 50, 0.0) == "labels"
    assert decide(triggers, 99, 0.0) is None


def test_where_few_samples_get_labels_half_as_many_are_enough() -> None:
    triggers = Triggers(new_labels=40, arrived=159)
    assert (triggers.until_scarce, decide(triggers, 39, 0.0)) == (1, None)
    triggers.arrived = 160
    assert decide(triggers, 19, 0.0) is None
    assert decide(triggers, 20, 0.0) == "labels"


def test_what_is_wanted_stays_wanted_while_something_holds_it_back() -> None:
    triggers = Triggers(new_labels=1, labels_start=False)
    triggers.scheduled = True
    assert (triggers.wanted(60), triggers.wanted(60)) == ("schedule", "schedule")
    triggers.begun("schedule")
    assert triggers.wanted(60) is None


def test_after_a_drift_some_runs_learn_harder_and_remember_less() -> None:
    policy = LearningPolicy(runs=2)
    assert policy.options(1e-3, 0.25) == RunOptions()
    policy.drifted()
    harder = RunOptions(learning_rate=2e-3, new_share=0.5)
    assert [policy.options(1e-3, 0.25) for _ in range(3)] == [harder, harder, RunOptions()]


def test_a_drift_never_lowers_the_share_of_new_rows() -> None:
    policy = LearningPolicy()
    policy.drifted()
    assert policy.options(1e-3, 0.9).new_share == 0.9


def test_where_answers_are_right_new_rows_count_for_less_and_a_drift_comes_before_that() -> None:
    policy = LearningPolicy(runs=1)
    shares = [policy.options(1e-3, 0.25, error).new_share or 0.25 for error in (0.0, 0.075, 0.15, 0.9)]
    assert shares == [pytest.approx(share) for share in (0.075, 0.1625, 0.25, 0.25)]
    policy.drifted()
    assert policy.options(1e-3, 0.25, 0.0).new_share == 0.5
