from dataclasses import replace

import pytest

from edged.domain.training.guards import Budget, Conditions, GuardRules, TrainingPace, is_quiet, refusals

NOON = Conditions(minute=12 * 60, day=7)


def test_without_limits_nothing_is_refused() -> None:
    hot = replace(NOON, temperature_c=200.0, on_battery=True, battery_percent=1.0)
    assert refusals(GuardRules(), hot, Budget(7, 1000, 1e6)) == ()


@pytest.mark.parametrize(
    ("rules", "bad", "good", "reason"),
    [
        (GuardRules(quiet=(660, 780)), {}, {"minute": 780}, "quiet hours, until 13:00"),
        (
            GuardRules(max_temperature=70),
            {"temperature_c": 71.0},
            {"temperature_c": 70.0},
            "temperature above 70 °C",
        ),
        (GuardRules(mains_only=True), {"on_battery": True}, {"on_battery": False}, "mains power"),
        (
            GuardRules(min_battery=30),
            {"on_battery": True, "battery_percent": 29.0},
            {"on_battery": True, "battery_percent": 30.0},
            "battery below 30 %",
        ),
        (
            GuardRules(),
            {"board": ("under-voltage", "throttled")},
            {},
            "the board: under-voltage, throttled",
        ),
        (
            GuardRules(write_rate=4096.0),
            {"worn": True},
            {},
            "flash: training writes 4 KiB a second on average",
        ),
        (
            GuardRules(serving_p99=0.01),
            {"serving_p99": 0.02},
            {"serving_p99": 0.01},
            "predictions slower than 10 ms",
        ),
    ],
)
def test_each_guard_refuses_beyond_its_limit_and_says_so(
    rules: GuardRules, bad: dict[str, float], good: dict[str, float], reason: str
) -> None:
    assert refusals(rules, replace(NOON, **bad), Budget()) == (reason,)  # type: ignore[arg-type]
    assert refusals(rules, replace(NOON, **good), Budget()) == ()  # type: ignore[arg-type]


def test_what_the_device_cannot_tell_refuses_nothing() -> None:
    rules = GuardRules(None, 70.0, 30.0, True, 0.01)
    assert refusals(rules, NOON, Budget()) == ()


def test_a_charged_battery_does_not_matter_on_mains() -> None:
    plugged = replace(NOON, on_battery=False, battery_percent=3.0)
    assert refusals(GuardRules(min_battery=30), plugged, Budget()) == ()


def test_all_refusals_are_named() -> None:
    rules = GuardRules(quiet=(0, 1439), max_temperature=50, max_minutes=0)
    assert len(refusals(rules, replace(NOON, temperature_c=60.0), Budget())) == 3


def test_quiet_hours_may_pass_midnight() -> None:
    night = (22 * 60, 6 * 60)
    assert [is_quiet(night, h * 60) for h in (21, 22, 23, 0, 5, 6, 12)] == [
        False, True, True, True, True, False, False,
    ]  # fmt: skip


def test_the_budget_of_a_day_is_used_up_and_the_next_day_is_another() -> None:
    rules = GuardRules(max_minutes=10)
    used = Budget.from_json(Budget().spent(7, 300.0).spent(7, 300.0).to_json())
    assert refusals(rules, NOON, used) == ("10 minutes of training today",)
    assert refusals(rules, replace(NOON, day=8), used) == ()
    assert used.spent(8, 1.0) == Budget(8, 1, 1.0)


def test_the_time_of_day_comes_from_the_devices_clock() -> None:
    assert Conditions.at(3 * 86400 + 61.0) == Conditions(minute=1, day=3)


def test_training_slows_down_step_by_step_to_a_halt_and_comes_back() -> None:
    pace = TrainingPace(0.010)
    slower = [pace.throttle(0.011) for _ in range(6)]
    assert slower == [0.5, 1.0, 3.0, 9.0, float("inf"), float("inf")]
    assert pace.throttle(0.008) == float("inf"), "near the budget nothing changes"
    assert [pace.throttle(0.001) for _ in range(6)] == [9.0, 3.0, 1.0, 0.5, 0.0, 0.0]
    pace.throttle(0.02)
    assert pace.throttle(None) == 0.0, "nothing is served: nothing is disturbed"
