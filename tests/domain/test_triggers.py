from edged.domain.triggers import TriggerRules, Triggers


def test_enough_new_labels_start_a_run() -> None:
    triggers = Triggers(TriggerRules(new_labels=100, min_new_samples=50))
    assert triggers.decide(99, 0.0) is None
    assert triggers.decide(100, 0.0) == "labels"


def test_a_schedule_with_too_little_data_is_dropped() -> None:
    triggers = Triggers(TriggerRules(new_labels=None, min_new_samples=50))
    triggers.scheduled = True
    assert triggers.decide(49, 0.0) is None
    assert triggers.decide(60, 0.0) is None, "the missed schedule must not fire later"
    triggers.scheduled = True
    assert triggers.decide(60, 0.0) == "schedule"


def test_cooldown_holds_back_all_but_a_command() -> None:
    triggers = Triggers(TriggerRules(new_labels=1, cooldown=60.0))
    triggers.last_end = 100.0
    assert triggers.decide(500, 159.0) is None
    triggers.commanded = True
    assert triggers.decide(0, 159.0) == "command"
    assert triggers.decide(500, 160.0) == "labels"


def test_a_failure_holds_back_all_but_a_command() -> None:
    triggers = Triggers(TriggerRules(new_labels=1))
    triggers.hold(5.0, 8.0)
    assert (triggers.decide(9, 12.9), triggers.decide(9, 13.0)) == (None, "labels")
    triggers.hold(13.0, 8.0)
    triggers.commanded = True
    assert triggers.decide(9, 14.0) == "command"


def test_a_rest_ends_with_enough_labels_or_a_command() -> None:
    triggers = Triggers(TriggerRules(new_labels=200, min_new_samples=100))
    assert triggers.rest(5) == 1000
    triggers.scheduled = True
    assert triggers.decide(999, 0.0) is None
    assert triggers.decide(1000, 0.0) == "schedule"
    assert triggers.decide(200, 0.0) == "labels", "one trial, then as usual"
    triggers.rest(5)
    triggers.commanded = True
    assert triggers.decide(0, 0.0) == "command"
    assert triggers.decide(200, 0.0) == "labels"


def test_a_run_that_was_cut_off_needs_no_new_labels() -> None:
    triggers = Triggers(TriggerRules(new_labels=500), interrupted=True)
    triggers.hold(0.0, 1.0)
    assert triggers.decide(0, 0.5) is None
    assert triggers.decide(0, 1.0) == "resume"
    assert triggers.decide(0, 2.0) is None, "once"
    triggers.interrupted = triggers.commanded = True
    assert triggers.decide(0, 3.0) == "command"
    assert triggers.decide(0, 4.0) is None, "the command has taken it up"
