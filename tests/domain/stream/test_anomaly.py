"""What looks unusual, and when it is an alarm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.config import AnomalyConfig
from edged.domain.stream import anomaly
from edged.domain.stream.anomaly import AlarmChange, Anomalies, AnomalyRules

if TYPE_CHECKING:
    from numpy.typing import NDArray

RULES = AnomalyRules(raise_after=3, of=5)
HIGH = 50.0


class Feed:
    """Gives scores to a detector one batch at a time; offsets and times go on from batch to batch."""

    def __init__(self, rules: AnomalyRules = RULES, seed: int = 0) -> None:
        self.found = Anomalies(rules)
        self.rng = np.random.default_rng(seed)
        self.next = 1
        self.changes: list[AlarmChange] = []
        self.flagged: list[int] = []

    def scores(self, values: Any, keys: list[str] | None = None) -> NDArray[np.bool_]:
        values = np.asarray(values, np.float64)
        offsets = np.arange(self.next, self.next + len(values))
        self.next += len(values)
        judged = self.found.detect(
            keys or ["a"] * len(values), offsets, np.asarray(10.0 * offsets, np.float64), values
        )
        self.changes += judged.changes
        self.flagged += offsets[judged.flagged].tolist()
        return judged.flagged

    def usual(self, n: int, keys: list[str] | None = None) -> NDArray[np.bool_]:
        return self.scores(self.rng.exponential(1.0, n), keys)


def calibrated(rules: AnomalyRules = RULES) -> Feed:
    feed = Feed(rules)
    for _ in range(20):
        feed.usual(100)
    feed.changes.clear()
    feed.flagged.clear()
    feed.found.pop_changes()
    return feed


def test_normal_scores_are_hardly_ever_flagged_and_raise_no_alarm() -> None:
    feed = Feed(AnomalyRules())
    for _ in range(1000):
        feed.usual(50)
    assert 20 < len(feed.flagged) < 150  # 50 of 50,000 are wanted
    assert feed.changes == []


@pytest.mark.parametrize(
    ("sensitivity", "share", "alarms"),
    [("low", (1e-4, 4e-4), (0, 0)), ("normal", (1e-3, 2e-3), (0, 0)), ("high", (7e-3, 12e-3), (1, 12))],
)
def test_each_sensitivity_has_the_false_alarms_that_its_page_states(
    sensitivity: str, share: tuple[float, float], alarms: tuple[int, int]
) -> None:
    """Of 200,000 independent scores; docs/mqtt.md states one alarm in 45,000 samples for `high`."""
    feed = Feed(AnomalyConfig(sensitivity=sensitivity).rules())
    for _ in range(2000):
        feed.usual(100)
    assert share[0] <= len(feed.flagged) / 200_000 <= share[1]
    assert alarms[0] <= feed.found.alarms <= alarms[1]


def test_the_usual_sensitivity_is_that_of_the_rules_themselves() -> None:
    assert AnomalyConfig().rules() == AnomalyRules()


def test_an_alarm_begins_with_k_of_n_and_ends_with_none() -> None:
    feed = calibrated()
    first = feed.next
    feed.scores([HIGH, 1, HIGH])
    assert feed.changes == []
    feed.scores([HIGH, 1, 1])
    (start,) = feed.changes
    assert (start.first, start.offset, start.until, start.key) == (first, first + 3, None, "a")
    assert start.since == 10.0 * first
    assert feed.found.standing() == ["a"]
    feed.scores([1, 1])
    assert len(feed.changes) == 1
    feed.scores([1])
    end = feed.changes[1]
    assert (end.first, end.since, end.until, end.samples) == (first, start.since, 10.0 * (first + 3), 9)
    assert end.peak == pytest.approx(start.peak)
    assert end.peak > 3
    assert not end.accepted
    assert feed.found.standing() == []
    assert start.as_dict()["state"] == "start"
    assert end.as_dict()["state"] == "end"


def test_all_that_belongs_to_an_alarm_is_set_aside() -> None:
    """Samples in between that look normal, too, those before the alarm was known included."""
    feed = calibrated()
    first = feed.next
    feed.scores([HIGH, 1, HIGH, HIGH, 1, 1, 1, 1, 1])
    feed.usual(5)
    aside, back = feed.found.pop_changes()
    assert sorted(aside) == list(range(first, first + 8))
    assert back == []
    assert feed.found.pop_changes() == ([], [])


def test_a_single_spike_is_set_aside_and_no_alarm() -> None:
    feed = calibrated()
    assert feed.scores([1, HIGH, 1]).tolist() == [False, True, False]
    assert feed.found.pop_changes()[0] == [feed.next - 2]
    assert feed.changes == []


def test_a_lasting_anomaly_does_not_move_the_threshold() -> None:
    feed = calibrated()
    before = feed.found.threshold
    for _ in range(100):
        feed.scores(feed.rng.exponential(1.0, 50) + 20.0)
    assert feed.found.threshold == before
    assert feed.found.standing() == ["a"]
    assert [change.until for change in feed.changes] == [None]


def test_keys_are_followed_by_themselves() -> None:
    feed = calibrated()
    keys = ["a", "b"] * 10
    feed.scores([1, HIGH] * 10, keys)
    assert [change.key for change in feed.changes] == ["b"]
    assert feed.found.standing() == ["b"]
    feed.scores([HIGH, 1, 1, 1] * 4, ["a", "c", "d", "e"] * 4)
    assert feed.found.standing() == ["a", "b"]


@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_what_has_no_score_is_unusual(score: float) -> None:
    feed = calibrated()
    threshold = feed.found.threshold
    assert feed.scores([1, score]).tolist() == [False, True]
    feed.scores([score] * 5)
    assert len(feed.changes) == 1
    json.dumps(feed.changes[0].as_dict(), allow_nan=False)
    assert feed.found.threshold == pytest.approx(threshold, rel=0.01)


def test_no_score_while_calibrating_does_not_count() -> None:
    feed = Feed()
    feed.scores([np.nan] * 200)
    assert feed.found.threshold is None


def test_an_accepted_alarm_ends_and_gives_its_samples_back() -> None:
    feed = calibrated()
    first = feed.next
    feed.scores(feed.rng.exponential(1.0, 60) + 20.0)
    assert feed.found.accept("b") == 0
    assert feed.found.accept("a") == 1
    assert feed.found.accept("a") == 0
    assert feed.found.pop_changes()[1] == [("a", first)]
    # It goes on like this: nothing is flagged, and the threshold follows.
    for _ in range(20):
        feed.scores(feed.rng.exponential(1.0, 100) + 20.0)
    assert [(change.until is None, change.accepted) for change in feed.changes] == [
        (True, False),
        (False, True),
    ]
    assert len(feed.flagged) < 60 + 40
    assert feed.found.threshold is not None
    assert feed.found.threshold > 20
    # What is unusual now is an alarm again.
    feed.scores(np.full(10, 500.0))
    assert feed.changes[-1].until is None
    assert feed.found.standing() == ["a"]


def test_accepting_one_key_leaves_the_alarm_of_another() -> None:
    feed = calibrated()
    keys = ["a", "b", "c"] * 200
    high = np.tile([20.0, 500.0, 0.0], 200)
    feed.scores(feed.rng.exponential(1.0, 600) + high, keys)
    assert feed.found.standing() == ["a", "b"]
    feed.found.accept("a")
    feed.flagged.clear()
    first = feed.next
    for _ in range(3):
        feed.scores(feed.rng.exponential(1.0, 600) + high, keys)
    assert feed.found.standing() == ["b"]
    assert set(range(first + 1, feed.next, 3)) <= set(feed.flagged)
    assert len(feed.flagged) < 600 + 20


def test_an_alarm_is_accepted_after_a_while_where_that_is_configured() -> None:
    feed = calibrated(replace(RULES, accept_after=1000.0))
    first = feed.next
    for _ in range(15):
        feed.scores(np.full(10, HIGH))
    assert [change.accepted for change in feed.changes] == [False, True]
    assert feed.changes[1].until == pytest.approx(feed.changes[0].since + 1010)
    assert feed.found.pop_changes()[1] == [("a", first)]


@pytest.mark.parametrize("cut", [2, 5, 8, 30])
def test_a_restart_goes_on_with_the_same_alarms(cut: int) -> None:
    values = [1, HIGH, HIGH, 1, HIGH, HIGH, 1, 1, 1, 1, 1, 1, HIGH, 1] + [1] * 30
    whole, broken = calibrated(), calibrated()
    whole.scores(values)
    broken.scores(values[:cut])
    kept = json.loads(json.dumps(broken.found.state()))
    broken.found = Anomalies(RULES)
    broken.found.restore(kept)
    broken.scores(values[cut:])
    # The threshold is kept with six digits.
    assert [replace(change, peak=0.0) for change in broken.changes] == [
        replace(change, peak=0.0) for change in whole.changes
    ]
    assert [change.peak for change in broken.changes] == pytest.approx(
        [change.peak for change in whole.changes], rel=0.02
    )
    assert broken.flagged == whole.flagged
    assert broken.found.flagged == whole.found.flagged


@pytest.mark.parametrize("state", [{}, {"normal": {}, "flagged": 1, "alarms": 1, "lines": {}}, {"normal": 3}])
def test_a_damaged_state_changes_nothing(state: dict[str, Any]) -> None:
    feed = calibrated()
    before = feed.found.state()
    with pytest.raises((LookupError, TypeError, ValueError)):
        feed.found.restore(state)
    assert feed.found.state() == before


def test_keys_that_never_come_back_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anomaly, "KEYS", 50)
    feed = calibrated()
    feed.scores([HIGH] * 3, ["steady"] * 3)
    for i in range(300):
        feed.scores([HIGH], [f"k{i}"])
    state: Mapping[str, Any] = feed.found.state()
    assert len(state["lines"]) <= 51
    assert feed.found.standing() == ["steady"]
    feed.scores([HIGH] * 3, ["new"] * 3)
    assert feed.found.standing() == ["new", "steady"]
