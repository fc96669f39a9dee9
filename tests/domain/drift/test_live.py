"""What is watched of a model that serves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from edged.domain.drift.live import DriftRules, LiveDrift
from edged.domain.drift.signals import Level
from edged.errors import CorruptError


def offsets(values: np.ndarray, start: int = 1) -> np.ndarray:
    return np.arange(start, start + len(values))


def test_errors_of_any_size_are_watched_in_relation_to_the_first_ones() -> None:
    rng = np.random.default_rng(0)
    for size in (1e-6, 1.0, 1e6):
        live = LiveDrift(classes=False)
        wrong = np.abs(rng.normal(size=4000)) * size
        wrong[3000:] *= 4
        for start in range(0, 4000, 70):
            part = wrong[start : start + 70]
            live.errors(part, offsets(part, start + 1))
        drifts = [signal for signal in live.pop_signals() if signal.level is Level.DRIFT]
        assert [signal.source for signal in drifts] == ["error"]
        assert 3000 < drifts[0].offset < 3200
        assert live.pop_signals() == []
        assert live.last is drifts[0]


def test_the_first_errors_may_come_one_by_one_and_be_no_numbers() -> None:
    live = LiveDrift(classes=False)
    for i in range(3000):
        wrong = np.array([np.nan if i % 3 else 1.0])
        live.errors(wrong, offsets(wrong, i + 1))
    assert live.signals == 0


def test_a_change_that_errors_and_confidence_both_show_is_one_signal() -> None:
    rng = np.random.default_rng(1)
    live = LiveDrift(classes=True)
    for start in range(0, 3000, 100):
        sure = rng.uniform(0.85, 1.0, 100) if start < 2000 else rng.uniform(0.4, 0.7, 100)
        wrong = (rng.random(100) < (0.05 if start < 2000 else 0.5)).astype(float)
        at = np.arange(start + 1, start + 101)
        live.confidence(sure.astype(np.float32), at, version=1)
        live.errors(wrong, at)
    assert sum(signal.level is Level.DRIFT for signal in live.pop_signals()) == 1


def test_a_new_version_may_be_surer_or_less_sure_than_the_one_before() -> None:
    rng = np.random.default_rng(2)
    levels = {}
    for swaps in (True, False):
        live = LiveDrift(classes=True)
        for start in range(0, 6000, 100):
            sure = rng.uniform(0.3, 0.6, 100) + 0.3 * (start >= 3000)
            version = 1 + int(swaps and start >= 3000)
            live.confidence(sure.astype(np.float32), np.arange(start, start + 100), version)
        levels[swaps] = {signal.level for signal in live.pop_signals()}
    assert levels[True] == set()
    assert Level.DRIFT in levels[False], "the same change without a swap is one"


def moving(n: int, at: int, d: int = 3) -> np.ndarray:
    x = np.random.default_rng(5).normal(size=(n, d)).astype(np.float32)
    x[at:, 1] += 2.0
    return x


def test_inputs_are_watched_and_it_is_told_which_of_them_moved() -> None:
    live = LiveDrift(classes=True, features=3)
    x = moving(4000, 2500)
    live.inputs(x, offsets(x))
    (signal,) = live.pop_signals()
    assert (signal.level, signal.source) == (Level.DRIFT, "inputs")
    said: Mapping[str, Any] = signal.named(("a", "b", "c")).to_json()
    assert said["features"][0]["feature"] == "b"
    assert live.last_inputs is signal


def test_it_goes_on_after_a_restart_as_if_there_had_been_none() -> None:
    x = moving(5000, 2600)
    rng = np.random.default_rng(6)
    wrong = np.concatenate([rng.random(2600) < 0.1, rng.random(2400) < 0.5]).astype(np.float64)
    sure = np.full(5000, 0.9, np.float32)

    def feed(live: LiveDrift, part: slice) -> None:
        at = np.arange(5000)[part]
        live.confidence(sure[part], at, 1)
        live.inputs(x[part], at)
        live.errors(wrong[part], at)

    whole, first = LiveDrift(classes=False, features=3), LiveDrift(classes=False, features=3)
    for start in range(0, 5000, 100):
        feed(whole, slice(start, start + 100))
    for start in range(0, 2500, 100):
        feed(first, slice(start, start + 100))
    second = LiveDrift(classes=False, features=3)
    assert second.restore(json.loads(json.dumps(first.state())))
    for start in range(2500, 5000, 100):
        feed(second, slice(start, start + 100))
    told = second.pop_signals()
    assert told == whole.pop_signals()
    assert {signal.source for signal in told} == {"error", "inputs"}


def test_a_state_of_other_rules_or_another_stream_is_left_alone() -> None:
    state = LiveDrift(classes=True, features=3).state()
    assert not LiveDrift(classes=True, features=4).restore(state)
    assert not LiveDrift(classes=False, features=3).restore(state)
    assert not LiveDrift(classes=True, features=3, rules=DriftRules(cooldown=1)).restore(state)


def test_a_damaged_state_is_refused() -> None:
    live = LiveDrift(classes=True, features=3)
    for part in ("errors", "confidence", "cooldown", "inputs", "version"):
        with pytest.raises(CorruptError):
            live.restore({**live.state(), part: "damaged"})
    with pytest.raises(CorruptError):
        live.restore({})


def test_delta_is_the_confidence_of_the_errors_detector() -> None:
    live = LiveDrift(classes=True, rules=DriftRules(delta=0.01))
    state: Mapping[str, Any] = live.state()
    assert state["errors"]["delta"] == 0.01
    assert state["confidence"]["delta"] == 0.002
