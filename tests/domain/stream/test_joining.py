"""Samples of the newest values of a key, as of one moment of event time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.domain.stream.joining import AWAY_AFTER, MOST_KEYS, FeatureRule, Joining, JoinRules, SensorAbsence
from edged.domain.stream.sample import Observation

if TYPE_CHECKING:
    from array import array

    from edged.domain.stream.sample import Reading

A, B = FeatureRule("a"), FeatureRule("b")


def joining(*features: FeatureRule, **rules: Any) -> Joining:
    return Joining(JoinRules(features or (A, B), **rules))


def say(to: Joining, ts: float, key: str = "k", **values: float) -> list[Reading]:
    """An observation whose values are named like the features of messages."""
    names = [rule.name for rule in to.rules.measured]
    return to.accept(Observation(key, [(names.index(name), v) for name, v in values.items()]), ts, ts)


def rows(readings: list[Reading]) -> list[list[float]]:
    return [list(reading.values) for reading in readings]


def test_each_message_makes_a_sample_once_every_feature_has_come() -> None:
    joined = joining()
    assert say(joined, 1.0, a=1.0) == []
    assert joined.awaiting == {1}
    assert rows(say(joined, 2.0, b=2.0)) == [[1.0, 2.0]]
    assert rows(say(joined, 3.0, a=3.0)) == [[3.0, 2.0]]
    assert joined.awaiting == set()


def test_only_the_chosen_feature_makes_samples_and_only_where_it_has_a_value() -> None:
    joined = joining(trigger=0)
    made = [say(joined, 1.0, b=2.0), say(joined, 2.0, a=1.0), say(joined, 3.0, b=9.0)]
    assert [rows(samples) for samples in made] == [[], [[1.0, 2.0]], []]
    assert say(joined, 4.0, a=math.nan) == []


def test_keys_are_apart() -> None:
    joined = joining()
    say(joined, 1.0, "x", a=1.0)
    assert say(joined, 1.0, "y", b=2.0) == []
    assert rows(say(joined, 2.0, "x", b=3.0)) == [[1.0, 3.0]]


def test_a_late_sample_sees_nothing_from_after_its_moment() -> None:
    joined = joining(trigger=0)
    for ts, value in ((1.0, 10.0), (2.0, 20.0), (3.0, 30.0)):
        say(joined, ts, b=value)
    assert rows(say(joined, 2.5, a=1.0)) == [[1.0, 20.0]]
    assert rows(say(joined, 3.0, a=1.0)) == [[1.0, 30.0]]


def test_a_late_value_takes_its_place_in_time_and_no_other() -> None:
    joined = joining(trigger=0)
    say(joined, 3.0, b=30.0)
    say(joined, 1.0, b=10.0)
    assert rows(say(joined, 4.0, a=1.0)) == [[1.0, 30.0]], "the newer one stays the newest"
    assert rows(say(joined, 2.0, a=1.0)) == [[1.0, 10.0]]


def test_of_two_values_of_one_moment_the_later_message_counts() -> None:
    joined = joining(trigger=0)
    say(joined, 1.0, b=1.0)
    say(joined, 1.0, b=2.0)
    assert rows(say(joined, 1.0, a=0.0)) == [[0.0, 2.0]]


@pytest.mark.parametrize(("fill", "filled"), [("last", 4.0), ("mean", 3.0)])
def test_a_missing_value_is_filled_and_flagged(fill: str, filled: float) -> None:
    joined = joining(A, FeatureRule("b", max_age=5.0), trigger=0, fill=fill, flags=True)
    say(joined, 1.0, b=2.0)
    say(joined, 2.0, b=4.0)
    assert rows(say(joined, 7.0, a=1.0)) == [[1.0, 4.0, 0.0, 0.0]], "as old as it may be"
    assert rows(say(joined, 7.1, a=1.0)) == [[1.0, filled, 0.0, 1.0]], "too old"
    say(joined, 8.0, b=math.nan)
    assert rows(say(joined, 8.0, a=1.0)) == [[1.0, filled, 0.0, 1.0]], "said to be missing"


def test_what_a_key_never_had_is_filled_from_other_keys_and_else_by_zero() -> None:
    joined = joining(trigger=0, flags=True)
    assert rows(say(joined, 1.0, "x", a=1.0)) == [[1.0, 0.0, 0.0, 1.0]]
    say(joined, 2.0, "y", b=6.0)
    assert rows(say(joined, 3.0, "x", a=1.0)) == [[1.0, 6.0, 0.0, 1.0]]


def test_changes_are_from_sample_to_sample() -> None:
    rules = (A, FeatureRule("d", change="difference"), FeatureRule("r", change="rate"))
    joined = joining(*rules, trigger=0)
    assert rows(say(joined, 10.0, d=5.0, r=5.0, a=1.0)) == [[1.0, 0.0, 0.0]], "nothing to compare with"
    say(joined, 11.0, d=6.0, r=6.0)
    assert rows(say(joined, 14.0, d=8.0, r=7.0, a=2.0)) == [[2.0, 3.0, 0.5]]


def test_the_logarithm_of_what_has_none_is_missing() -> None:
    joined = joining(FeatureRule("p", change="log"), flags=True)
    assert rows(say(joined, 1.0, p=math.e)) == [[1.0, 0.0]]
    assert rows(say(joined, 2.0, p=-1.0)) == [[1.0, 1.0]]


def test_the_time_of_day_and_of_the_week_are_points_on_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "UTC+2")  # two hours behind UTC
    time.tzset()
    try:
        joined = joining(A, FeatureRule("hour", time="hour_of_day"), FeatureRule("day", time="day_of_week"))
        (row,) = rows(say(joined, 3 * 86400.0 + 8 * 3600.0, a=1.0))  # Sunday, 6 o'clock
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    week = math.tau * 6.25 / 7
    assert row == pytest.approx([1.0, 1.0, 0.0, math.sin(week), math.cos(week)], abs=1e-9)


def test_by_the_clock_a_sample_has_the_values_of_its_stretch_in_whatever_order_they_came() -> None:
    joined = joining(period=1.0)
    say(joined, 5.0, b=2.0)
    assert say(joined, 5.0, a=1.0) == []
    (sample,) = say(joined, 6.0, a=9.0)
    assert (sample.values, sample.ts) == ([1.0, 2.0], 5.0), "without what belongs to the next"


def test_a_stretch_ends_when_its_time_has_passed_though_nothing_more_comes() -> None:
    joined = joining(period=10.0)
    say(joined, 100.0, a=1.0, b=2.0)
    assert joined.next_tick(100.0) == 110.0
    assert joined.tick(109.9) == []
    (sample,) = joined.tick(110.0)
    assert (sample.values, sample.ts) == ([1.0, 2.0], 100.0)
    assert [round(r.ts or 0) for r in joined.tick(131.0)] == [120, 130], "nothing new: at their ends"


def test_a_key_that_is_silent_makes_no_more_samples_and_none_for_the_break() -> None:
    joined = joining(period=1.0)
    say(joined, 100.0, a=1.0, b=2.0)
    assert len(joined.tick(1000.0)) == 10
    assert joined.next_tick(1000.0) == math.inf
    assert say(joined, 2000.5, a=3.0) == []
    assert rows(say(joined, 2001.0, a=4.0)) == [[3.0, 2.0]]


def test_a_key_that_awaits_a_feature_rests_too() -> None:
    joined = joining(period=1.0)
    say(joined, 100.0, a=1.0)
    joined.tick(200.0)
    assert joined.next_tick(200.0) == math.inf
    say(joined, 300.5, b=2.0)
    assert rows(say(joined, 301.0, a=4.0)) == [[1.0, 2.0]]


def test_values_that_may_be_old_keep_a_silent_key_awake() -> None:
    joined = joining(FeatureRule("a", max_age=60.0), period=1.0)
    say(joined, 100.0, a=1.0)
    assert len(joined.tick(1000.0)) == 60


def test_a_sensor_that_stays_away_is_told_once_and_again_when_it_is_back() -> None:
    joined = joining(trigger=0, flags=True)
    for second in range(AWAY_AFTER + 5):
        say(joined, float(second), a=1.0)
    assert joined.absences() == [SensorAbsence("k", away=True, features=(1,))]
    say(joined, 100.0, b=1.0)
    say(joined, 101.0, a=1.0)
    assert joined.absences() == [SensorAbsence("k", away=False, features=(1,))]


def test_a_sensor_that_never_comes_is_told_though_no_sample_is_made() -> None:
    joined = joining(trigger=0)
    for second in range(AWAY_AFTER):
        say(joined, float(second), a=1.0)
    assert joined.absences() == [SensorAbsence("k", away=True, features=(1,))]


def test_a_sensor_that_makes_the_samples_is_told_too_when_it_stays_away() -> None:
    joined = joining(FeatureRule("a", max_age=5.0), trigger=0)
    say(joined, 10.0, a=1.0)
    joined.overdue(14.0)
    assert joined.absences() == []
    joined.overdue(16.0)
    joined.overdue(17.0)
    assert joined.absences() == [SensorAbsence("k", away=True, features=(0,))]


def test_a_sensor_has_its_max_age_to_come_for_the_first_time_and_after_a_restart() -> None:
    rules = (FeatureRule("a", max_age=5.0), FeatureRule("b", max_age=60.0))
    joined = joining(*rules, trigger=0)
    say(joined, 10.0, a=1.0)
    joined.overdue(12.0)
    assert joined.absences() == []
    states = {key: state for key, state in joined.changes().states.items() if state is not None}
    again = joining(*rules, trigger=0)
    again.restore(states, 1000.0)
    for at, away in ((1004.0, None), (1006.0, 0), (1059.0, None), (1061.0, 1)):
        again.overdue(at)
        told = [] if away is None else [SensorAbsence("k", away=True, features=(away,))]
        assert again.absences() == told, at


def test_of_very_many_keys_those_heard_last_are_kept() -> None:
    joined = joining(A)
    for number in range(MOST_KEYS + 1):
        say(joined, float(number), f"k{number}", a=1.0)
    changes = joined.changes()
    assert changes.states["k0"] is None
    assert len([state for state in changes.states.values() if state is not None]) == MOST_KEYS


def test_states_of_other_features_are_dropped() -> None:
    old = joining(A)
    say(old, 1.0, a=1.0)
    stored = {key: state for key, state in old.changes().states.items() if state is not None}
    joined = joining()
    joined.restore(stored, 0.0)
    assert joined.changes().states == {"k": None}


values = st.one_of(st.floats(-1e3, 1e3, width=32), st.just(math.nan))
messages = st.lists(
    st.tuples(
        st.sampled_from("xy"), st.integers(0, 30), st.dictionaries(st.sampled_from("ab"), values, min_size=1)
    ),
    max_size=40,
)
rules: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    trigger=st.sampled_from([None, 0]),
    period=st.sampled_from([None, 2.0]),
    fill=st.sampled_from(["last", "mean"]),
    flags=st.booleans(),
)


@settings(max_examples=300)
@given(messages, rules, st.integers(0, 40))
def test_a_restart_at_any_place_changes_no_sample(
    said: list[tuple[str, int, dict[str, float]]], kind: dict[str, Any], cut: int
) -> None:
    if kind["period"] is not None:
        kind["trigger"] = None
    features = (FeatureRule("a", max_age=6.0), FeatureRule("b", change="difference"))
    through, first = joining(*features, **kind), joining(*features, **kind)
    expected = [rows(say(through, float(ts), key, **given_)) for key, ts, given_ in said]
    made = [rows(say(first, float(ts), key, **given_)) for key, ts, given_ in said[:cut]]
    stored: dict[str, array[float]] = {k: s for k, s in first.changes().states.items() if s is not None}
    second = joining(*features, **kind)
    second.restore(stored, 0.0)
    made += [rows(say(second, float(ts), key, **given_)) for key, ts, given_ in said[cut:]]
    if kind["fill"] == "last" and kind["flags"]:
        assert [len(one) for one in made] == [len(one) for one in expected]
    for one, other in zip(made, expected, strict=True):
        for row, wanted in zip(one, other, strict=True):
            assert row == pytest.approx(wanted)
            assert all(map(math.isfinite, row))


@settings(max_examples=200)
@given(messages)
def test_no_value_of_a_sample_is_from_after_it_or_older_than_allowed(
    said: list[tuple[str, int, dict[str, float]]],
) -> None:
    joined = joining(FeatureRule("a", max_age=3.0), FeatureRule("b", max_age=3.0), flags=True)
    for key, ts, given_ in said:
        # The value is the time itself, so that a sample shows where its values are from.
        told = {name: math.nan if math.isnan(value) else float(ts) for name, value in given_.items()}
        for reading in say(joined, float(ts), key, **told):
            for value, missing in zip(reading.values[:2], reading.values[2:], strict=True):
                assert missing or ts - 3.0 <= value <= ts
