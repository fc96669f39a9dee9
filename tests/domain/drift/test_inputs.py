import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edged.domain.drift import inputs
from edged.domain.drift.inputs import InputDrift, InputRules
from edged.domain.drift.signals import DriftSignal, Level
from edged.errors import TrainingError

Rows = NDArray[np.float32]
SMALL = InputRules(reference=200, recent=100, stride=20)


def normal(n: int, d: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).standard_normal((n, d), np.float32)


def correlated(n: int, d: int, share: float, seed: int = 0) -> Rows:
    noise: Rows = normal(n, d, seed) * np.float32((1 - share**2) ** 0.5)
    for i in range(1, n):
        noise[i] += np.float32(share) * noise[i - 1]
    return noise


def signals(watch: InputDrift, rows: Rows, start: int = 0) -> list[DriftSignal]:
    return watch.update(rows, np.arange(start, start + len(rows)))


def drifts(found: list[DriftSignal]) -> list[DriftSignal]:
    return [signal for signal in found if signal.level is Level.DRIFT]


def test_the_feature_that_moved_is_named() -> None:
    x = normal(8000, 6)
    x[4000:, 4] += 1
    found = signals(InputDrift(6), x)
    assert len(drifts(found)) == 1
    signal = drifts(found)[0]
    assert 4000 < signal.offset <= 4512
    assert [shift.feature for shift in signal.features] == [4]
    assert signal.statistic >= signal.threshold == 0.25


def test_several_features_come_most_moved_first() -> None:
    x = normal(8000, 6)
    x[4000:, 1] += 1
    x[4000:, 3] += 3
    signal = drifts(signals(InputDrift(6), x))[0]
    assert [shift.feature for shift in signal.features] == [3, 1]


def test_a_change_of_spread_alone_is_seen() -> None:
    x = normal(8000, 2)
    x[4000:, 0] *= 3
    assert [s.feature for s in drifts(signals(InputDrift(2), x))[0].features] == [0]


def test_a_sensor_that_sticks_is_seen() -> None:
    x = normal(8000, 2)
    x[4000:, 1] = x[4000, 1]
    assert [s.feature for s in drifts(signals(InputDrift(2), x))[0].features] == [1]


def test_a_constant_that_becomes_another_is_seen() -> None:
    x = normal(8000, 2)
    x[:, 0] = np.where(np.arange(8000) < 4000, 20, 19)
    assert [s.feature for s in drifts(signals(InputDrift(2), x))[0].features] == [0]


@pytest.mark.parametrize("size", [1, 8, 32])
def test_stationary_inputs_give_no_false_alarm_in_50_000(size: int) -> None:
    assert drifts(signals(InputDrift(size), normal(50_000, size))) == []


def test_inputs_that_follow_each_other_closely_give_no_false_alarm_in_50_000() -> None:
    assert drifts(signals(InputDrift(3), correlated(50_000, 3, 0.95))) == []


def test_a_slow_change_gives_a_signal_and_then_rest() -> None:
    x = normal(20_000, 2)
    x[:, 0] += np.clip((np.arange(20_000) - 5000) / 1000, 0, 1) * 2
    found = drifts(signals(InputDrift(2), x))
    assert 1 <= len(found) <= 2
    assert all(5000 < signal.offset < 9000 for signal in found)


def test_a_change_that_is_significant_but_small_is_no_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = InputRules(reference=20_000, recent=5000)
    x = normal(40_000, 1)
    x[20_000:] += 0.15
    assert signals(InputDrift(1, rules), x) == []
    for name in ("PSI", "WARNING_PSI"):
        monkeypatch.setattr(inputs, name, 0.0)
    assert signals(InputDrift(1, rules), x) != []


def test_gaps_in_one_feature_do_not_blind_the_others() -> None:
    x = normal(8000, 3)
    x[::2, 0] = np.nan
    x[:, 1] = np.nan
    x[5, 2] = np.inf
    x[4000:, 2] += 2
    assert [s.feature for s in drifts(signals(InputDrift(3), x))[0].features] == [2]


def test_a_feature_that_falls_silent_is_no_drift_and_no_error() -> None:
    x = normal(8000, 2)
    x[4000:, 0] = np.nan
    assert signals(InputDrift(2), x) == []


def test_inputs_are_left_as_they_were() -> None:
    x = normal(500, 2)
    x[3] = np.nan
    before = x.copy()
    signals(InputDrift(2, SMALL), x)
    np.testing.assert_array_equal(x, before)


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 1500), max_size=6), seed=st.integers(0, 9))
def test_how_rows_are_split_into_batches_makes_no_difference(cuts: list[int], seed: int) -> None:
    x = normal(1500, 2, seed)
    x[700:, 0] += 2
    whole, parts = signals(InputDrift(2, SMALL), x), []
    watch, places = InputDrift(2, SMALL), [0, *sorted(cuts), 1500]
    for start, end in pairwise(places):
        parts += signals(watch, x[start:end], start)
    assert parts == whole
    assert whole


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(0, 1500))
def test_a_round_trip_through_json_continues_identically(cut: int) -> None:
    x = normal(1500, 3)
    x[700:, 0] += 2
    x[::9, 1] = np.nan
    watch = InputDrift(3, SMALL)
    signals(watch, x[:cut])
    again = InputDrift(3, SMALL)
    again.restore(json.loads(json.dumps(watch.state(), allow_nan=False)))
    assert signals(again, x[cut:], cut) == signals(watch, x[cut:], cut)
    assert again.state() == watch.state()


@pytest.mark.parametrize(
    "damage",
    [
        {"recent": "AAAA"},
        {"reference": "!"},
        {"reference": None},
        {"seen": None},
        {"seen": 3},
        {"cooldown": {"quiet": "x"}},
    ],
)
def test_a_damaged_state_is_refused(damage: dict[str, Any]) -> None:
    watch = InputDrift(2, SMALL)
    signals(watch, normal(400, 2))
    refused = pytest.raises((LookupError, TypeError, ValueError, TrainingError))
    with refused:
        InputDrift(2, SMALL).restore({**watch.state(), **damage})
    with refused:
        InputDrift(2, SMALL).restore({k: v for k, v in watch.state().items() if k not in damage})


def test_a_signal_can_be_written_as_json() -> None:
    x = normal(1500, 3)
    x[700:, 2] += 2
    signal = drifts(signals(InputDrift(3, SMALL), x))[0]
    said = json.loads(json.dumps(signal.to_json()))
    assert said["level"] == "drift"
    assert said["source"] == "inputs"
    assert said["detector"] == "ks_psi"
    assert [shift["feature"] for shift in said["features"]] == [2]
    assert set(said["features"][0]) == {"feature", "level", "ks", "p", "psi"}
    for one in (signal, signal.named(("a", "b", "c"))):
        assert json.dumps(DriftSignal.from_json(one.to_json()).to_json()) == json.dumps(one.to_json())
