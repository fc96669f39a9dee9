"""What every streaming detector keeps to, at the literature's parameters and at the daemon's."""

import json
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.domain.drift.adwin import ADWIN
from edged.domain.drift.signals import Level
from edged.errors import TrainingError

Make = Callable[[], ADWIN]


def default_detector() -> ADWIN:
    """The daemon's detector of errors."""
    return ADWIN(rises_only=True)


def independent() -> ADWIN:
    """ADWIN as the paper has it."""
    return ADWIN(block=0)


TWO_SIDED: list[Make] = [independent, ADWIN]
QUIET: list[Make] = [lambda: ADWIN(rises_only=True, block=0), default_detector]

every = pytest.mark.parametrize("make", TWO_SIDED + QUIET)


def bits(rate: float, n: int, seed: int = 0) -> list[float]:
    rng = random.Random(f"{seed} {rate}")
    return [float(rng.random() < rate) for _ in range(n)]


def levels(detector: ADWIN, readings: list[float]) -> list[Level]:
    return [detector.update(reading) for reading in readings]


def drifts(detector: ADWIN, readings: list[float]) -> list[int]:
    return [at for at, level in enumerate(levels(detector, readings)) if level is Level.DRIFT]


@every
def test_a_risen_error_rate_is_a_drift(make: Make) -> None:
    detector = make()
    before = levels(detector, ([0.0] * 9 + [1.0]) * 200)
    after = levels(detector, bits(0.6, 1000))
    assert Level.DRIFT not in before
    assert after.index(Level.DRIFT) < 400


@every
def test_a_signal_says_how_far_the_statistic_went(make: Make) -> None:
    detector = make()
    for reading in bits(0.1, 2000) + bits(0.6, 1000):
        level = detector.update(reading)
        if level is Level.DRIFT:
            assert detector.statistic > detector.threshold > 0
            return
        if level is Level.WARNING:
            assert 0 < detector.statistic <= detector.threshold
    pytest.fail("no drift")


@every
@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf, 1e300, np.float32("nan")])
def test_what_is_no_number_neither_counts_nor_harms(make: Make, gap: float) -> None:
    clean, holed = make(), make()
    for at, reading in enumerate(bits(0.1, 1000) + bits(0.6, 1000)):
        if at % 7 == 0:
            before = holed.to_json()
            assert holed.update(gap) is Level.NONE
            assert holed.to_json() == before
        assert holed.update(reading) is clean.update(reading)


@every
@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, 1400), seed=st.integers(0, 99))
def test_a_round_trip_through_json_continues_identically(make: Make, cut: int, seed: int) -> None:
    readings = bits(0.2, 700, seed) + bits(0.7, 700, seed)
    straight, broken = make(), make()
    levels(straight, readings[:cut])
    levels(broken, readings[:cut])
    again = type(broken).from_json(json.loads(json.dumps(broken.to_json(), allow_nan=False)))
    assert levels(again, readings[cut:]) == levels(straight, readings[cut:])
    assert again.to_json() == straight.to_json()


@every
def test_numpy_readings_leave_a_state_of_json_values(make: Make) -> None:
    detector = make()
    for reading in np.asarray(bits(0.3, 300), np.float32):
        detector.update(reading)
    assert json.loads(json.dumps(detector.to_json(), allow_nan=False)) == detector.to_json()


@every
def test_a_state_is_a_snapshot(make: Make) -> None:
    detector = make()
    levels(detector, bits(0.2, 100))
    kept = detector.to_json()
    text = json.dumps(kept)
    levels(detector, bits(0.2, 100))
    assert json.dumps(kept) == text


def test_a_reset_detector_is_as_new() -> None:
    detector = independent()
    levels(detector, bits(0.5, 500))
    detector.reset()
    assert detector.to_json() == independent().to_json()


@every
def test_memory_stays_small(make: Make) -> None:
    detector = make()
    levels(detector, bits(0.2, 20_000))
    assert len(json.dumps(detector.to_json())) < 4000


@pytest.mark.parametrize("wrong", [None, "x", math.nan, [1, "x"], True])
def test_a_damaged_state_is_refused_in_one_line(wrong: Any) -> None:
    with pytest.raises(TrainingError, match=r"ADWIN\.n: expected a whole number"):
        ADWIN.from_json({**ADWIN().to_json(), "n": wrong})
    with pytest.raises(TrainingError, match=r"ADWIN\.rows\[0\]\[1\]: expected a finite number"):
        ADWIN.from_json({**ADWIN().to_json(), "rows": [[1.0, "x"]]})


def test_buckets_that_contradict_the_window_are_refused() -> None:
    detector = ADWIN()
    levels(detector, bits(0.2, 100))
    with pytest.raises(TrainingError, match="contradict"):
        ADWIN.from_json({**detector.to_json(), "n": 99})


@pytest.mark.parametrize("make", QUIET)
def test_quiet_detectors_say_nothing_of_a_model_that_became_better(make: Make) -> None:
    assert drifts(make(), bits(0.4, 3000) + bits(0.1, 3000)) == []


@pytest.mark.parametrize("make", TWO_SIDED)
def test_two_sided_detectors_see_a_fall_too(make: Make) -> None:
    found = drifts(make(), bits(0.8, 2000) + bits(0.2, 2000))
    assert len(found) == 1
    assert 2000 < found[0] < 2400


def bursts(rate: float, length: float, n: int, seed: int = 0) -> list[float]:
    """Errors that come `length` in a row on the mean."""
    rng, wrong, out = random.Random(f"{seed} {rate} {length}"), False, []
    begin = rate / (1 - rate) / length
    for _ in range(n):
        wrong = rng.random() >= 1 / length if wrong else rng.random() < begin
        out.append(float(wrong))
    return out


def test_the_default_knows_that_errors_come_in_bursts() -> None:
    stationary = bursts(0.1, 5, 50_000)
    assert len(drifts(ADWIN(rises_only=True, block=0), stationary)) > 10
    detector = default_detector()
    assert drifts(detector, stationary) == []
    assert drifts(detector, bursts(0.4, 5, 2000)) != []


def test_what_is_known_of_bursts_outlives_a_reset() -> None:
    detector = default_detector()
    for seed in range(30):
        assert drifts(detector, bursts(0.1, 5, 2000, seed)) == []
        detector.reset()
        assert detector.to_json()["n"] == 0


def test_errors_after_a_flawless_beginning_are_not_taken_for_noise() -> None:
    found = drifts(default_detector(), [0.0] * 5000 + bits(0.2, 1000))
    assert len(found) == 1
    assert found[0] < 5200


def test_the_default_sees_a_rise_after_a_fall() -> None:
    found = drifts(default_detector(), bits(0.4, 3000) + bits(0.1, 3000) + bits(0.4, 500))
    assert len(found) == 1
    assert 6000 < found[0] < 6200


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.3, 0.5])
def test_the_default_is_quiet_on_50_000_stationary_errors(rate: float) -> None:
    assert drifts(default_detector(), bits(rate, 50_000)) == []


@pytest.mark.slow
@pytest.mark.parametrize("make", QUIET)
@pytest.mark.parametrize("rate", [0.005, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5])
def test_quiet_detectors_give_at_most_one_false_alarm_in_50_000(make: Make, rate: float) -> None:
    alarms = [len(drifts(make(), bits(rate, 50_000, seed))) for seed in range(6)]
    assert sum(alarms) / len(alarms) <= 1
