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

from edged.domain.drift.adwin import ADWIN, CorrelatedADWIN
from edged.domain.drift.live import default_detector
from edged.domain.drift.signals import Level
from edged.errors import ConfigError, CorruptError

Make = Callable[[], ADWIN]

TWO_SIDED: list[Make] = [ADWIN, CorrelatedADWIN]
QUIET: list[Make] = [lambda: ADWIN(mode="up"), default_detector]

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
            before = holed.state()
            assert holed.update(gap) is Level.NONE
            assert holed.state() == before
        assert holed.update(reading) is clean.update(reading)


@every
@settings(max_examples=20, deadline=None)
@given(cut=st.integers(0, 1400), seed=st.integers(0, 99))
def test_a_round_trip_through_json_continues_identically(make: Make, cut: int, seed: int) -> None:
    readings = bits(0.2, 700, seed) + bits(0.7, 700, seed)
    straight, broken = make(), make()
    levels(straight, readings[:cut])
    levels(broken, readings[:cut])
    again = type(broken).from_state(json.loads(json.dumps(broken.state(), allow_nan=False)))
    assert levels(again, readings[cut:]) == levels(straight, readings[cut:])
    assert again.state() == straight.state()


@every
def test_numpy_readings_leave_a_state_of_json_values(make: Make) -> None:
    detector = make()
    for reading in np.asarray(bits(0.3, 300), np.float32):
        detector.update(reading)
    assert json.loads(json.dumps(detector.state(), allow_nan=False)) == detector.state()


@every
def test_a_state_is_a_snapshot(make: Make) -> None:
    detector = make()
    levels(detector, bits(0.2, 100))
    kept = detector.state()
    text = json.dumps(kept)
    levels(detector, bits(0.2, 100))
    assert json.dumps(kept) == text


def test_a_reset_detector_is_as_new() -> None:
    detector = ADWIN()
    levels(detector, bits(0.5, 500))
    detector.reset()
    assert detector.state() == ADWIN().state()


@every
def test_memory_stays_small(make: Make) -> None:
    detector = make()
    levels(detector, bits(0.2, 20_000))
    assert len(json.dumps(detector.state())) < 4000


@pytest.mark.parametrize("kind", TWO_SIDED)
@pytest.mark.parametrize("wrong", [None, "x", math.nan, [1, "x"], True])
def test_a_damaged_state_is_refused_in_one_line(kind: type[ADWIN], wrong: Any) -> None:
    state = kind().state()
    with pytest.raises(CorruptError, match="fresh detector"):
        kind.from_state({**state, "n": wrong})
    with pytest.raises(CorruptError, match="'n'"):
        kind.from_state({name: value for name, value in state.items() if name != "n"})


def test_a_state_of_another_detector_is_refused() -> None:
    with pytest.raises(CorruptError, match="'block'"):
        CorrelatedADWIN.from_state(ADWIN().state())


def test_buckets_that_contradict_the_window_are_refused() -> None:
    detector = ADWIN()
    levels(detector, bits(0.2, 100))
    with pytest.raises(CorruptError, match="contradict"):
        ADWIN.from_state({**detector.state(), "n": 99})


@pytest.mark.parametrize(
    "make",
    [
        lambda: ADWIN(delta=0),
        lambda: ADWIN(mode="sideways"),
        lambda: ADWIN(max_buckets=1),
        lambda: ADWIN(clock=0),
        lambda: CorrelatedADWIN(block=0),
        lambda: default_detector(0.5),
    ],
)
def test_impossible_parameters_are_refused(make: Make) -> None:
    with pytest.raises(ConfigError):
        make()


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
    assert len(drifts(ADWIN(mode="up"), stationary)) > 10
    detector = default_detector()
    assert drifts(detector, stationary) == []
    assert drifts(detector, bursts(0.4, 5, 2000)) != []


def test_what_is_known_of_bursts_outlives_a_reset() -> None:
    detector = default_detector()
    for seed in range(30):
        assert drifts(detector, bursts(0.1, 5, 2000, seed)) == []
        detector.reset()
        assert detector.state()["n"] == 0


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
