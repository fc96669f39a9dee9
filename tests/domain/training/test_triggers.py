from edged.domain.training.triggers import FEWEST, TriggerRules, Triggers


def decide(triggers: Triggers, new: int, monotonic: float) -> str | None:
    wanted = triggers.wanted(new)
    if wanted is None or (wanted != "command" and triggers.pause_reason(monotonic) is not None):
        return None
    triggers.begun(wanted)
    return wanted


def test_enough_new_labels_start_a_run() -> None:
    triggers = Triggers(TriggerRules(new_labels=100, min_new_samples=50))
    assert decide(triggers, 99, 0.0) is None
    assert decide(triggers, 100, 0.0) == "labels"


def test_a_schedule_with_too_little_data_is_dropped() -> None:
    triggers = Triggers(TriggerRules(new_labels=None, min_new_samples=50))
    triggers.scheduled = True
    assert decide(triggers, 49, 0.0) is None
    assert decide(triggers, 60, 0.0) is None, "the missed schedule must not fire later"
    triggers.scheduled = True
    assert decide(triggers, 60, 0.0) == "schedule"


def test_cooldown_holds_back_all_but_a_command() -> None:
    triggers = Triggers(TriggerRules(new_labels=1, cooldown=60.0))
    triggers.last_end = 100.0
    assert decide(triggers, 500, 159.0) is None
    triggers.commanded = True
    assert decide(triggers, 0, 159.0) == "command"
    assert decide(triggers, 500, 160.0) == "labels"


def test_a_failure_holds_back_all_but_a_command() -> None:
    triggers = Triggers(TriggerRules(new_labels=1))
    triggers.back_off(5.0, 8.0)
    assert (decide(triggers, 9, 12.9), decide(triggers, 9, 13.0)) == (None, "labels")
    triggers.back_off(13.0, 8.0)
    triggers.commanded = True
    assert decide(triggers, 9, 14.0) == "command"


def test_a_run_that_was_cut_off_needs_no_new_labels() -> None:
    triggers = Triggers(TriggerRules(new_labels=500), interrupted=True)
    triggers.back_off(0.0, 1.0)
    assert decide(triggers, 0, 0.5) is None
    assert decide(triggers, 0, 1.0) == "resume"
    assert decide(triggers, 0, 2.0) is None, "once"
    triggers.interrupted = triggers.commanded = True
    assert decide(triggers, 0, 3.0) == "command"
    assert decide(triggers, 0, 4.0) is None, "the command has taken it up"


def test_a_drift_starts_a_run_with_few_labels() -> None:
    triggers = Triggers(TriggerRules(new_labels=100, min_new_samples=100))
    triggers.drifted = True
    assert decide(triggers, FEWEST - 1, 0.0) is None
    assert decide(triggers, FEWEST, 0.0) == "drift"
    assert decide(triggers, FEWEST, 0.0) is None, "it is acted on once"


def test_a_fall_of_quality_starts_a_run() -> None:
    triggers = Triggers(TriggerRules(new_labels=100))
    triggers.fallen = True
    assert decide(triggers, FEWEST, 0.0) == "quality"


def test_drifts_may_be_told_not_to_start_runs() -> None:
    triggers = Triggers(TriggerRules(new_labels=100, drift=False))
    triggers.drifted = triggers.fallen = True
    assert decide(triggers, 99, 0.0) is None


def test_a_drift_waits_for_the_cool_down() -> None:
    triggers = Triggers(TriggerRules(new_labels=None, cooldown=60.0))
    triggers.last_end, triggers.drifted = 100.0, True
    assert triggers.pause_reason(159.0) == "a cool-down of 60 s"
    assert decide(triggers, 50, 159.0) is None
    assert decide(triggers, 50, 160.0) == "drift"


def test_a_warning_halves_what_a_run_needs_until_one_begins() -> None:
    triggers = Triggers(TriggerRules(new_labels=100))
    triggers.warned = True
    assert decide(triggers, 49, 0.0) is None
    assert decide(triggers, 50, 0.0) == "labels"
    assert decide(triggers, 99, 0.0) is None


def test_where_few_samples_get_labels_half_as_many_are_enough() -> None:
    triggers = Triggers(TriggerRules(new_labels=40, scarce=True), arrived=159)
    assert (triggers.until_scarce, decide(triggers, 39, 0.0)) == (1, None)
    triggers.arrived = 160
    assert decide(triggers, 19, 0.0) is None
    assert decide(triggers, 20, 0.0) == "labels"
    always = Triggers(TriggerRules(new_labels=40), arrived=1000)
    assert decide(always, 39, 0.0) is None


def test_what_is_wanted_stays_wanted_while_something_holds_it_back() -> None:
    triggers = Triggers(TriggerRules(new_labels=None, min_new_samples=50))
    triggers.scheduled = True
    assert (triggers.wanted(60), triggers.wanted(60)) == ("schedule", "schedule")
    triggers.begun("schedule")
    assert triggers.wanted(60) is None
