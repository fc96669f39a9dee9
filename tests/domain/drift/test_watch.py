import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.drift.adwin import ADWIN
from edged.domain.drift.live import StreamWatch, bounded
from edged.domain.drift.signals import Cooldown, DriftSignal, Level
from edged.errors import TrainingError
from tests.domain.drift.streams import CHANGE, errors


def error_watch() -> StreamWatch:
    return StreamWatch("error", ADWIN(rises_only=True), Cooldown())


def confidence_watch(cooldown: Cooldown | None = None) -> StreamWatch:
    return StreamWatch("confidence", ADWIN(), cooldown or Cooldown())


def signals(watch: StreamWatch, readings: list[float], start: int = 0) -> list[DriftSignal]:
    return watch.update(np.asarray(readings, np.float64), np.arange(start, start + len(readings)))


def rising(seed: int, width: int) -> list[float]:
    """An error rate of 10 % that becomes 50 % between readings 3000 and 3000 + width, of 8000."""
    rng = np.random.default_rng(seed)
    rate = 0.1 + 0.4 * np.clip((np.arange(8000) - 3000) / max(width, 1), 0, 1)
    return [float(v) for v in rng.random(8000) < rate]


@pytest.mark.parametrize("width", [0, 500])
@pytest.mark.parametrize("seed", range(10))
def test_one_change_gives_one_drift(width: int, seed: int) -> None:
    found = [s for s in signals(error_watch(), rising(seed, width)) if s.level is Level.DRIFT]
    assert len(found) == 1
    assert 3000 < found[0].offset < 3600
    assert (found[0].source, found[0].detector) == ("error", "adwin_correlated")


def test_a_change_in_steps_is_one_warning_and_one_drift() -> None:
    levels = [s.level for s in signals(error_watch(), rising(1, 500))]
    assert levels == sorted(levels)
    assert levels.count(Level.DRIFT) == 1
    assert levels.count(Level.WARNING) <= 1


@pytest.mark.parametrize("step", [-0.2, 0.2])
def test_confidence_is_watched_in_both_directions(step: float) -> None:
    rng = np.random.default_rng(0)
    sure = np.concatenate([rng.normal(0.7, 0.1, 3000), rng.normal(0.7 + step, 0.1, 1000)])
    found = signals(confidence_watch(), sure.clip(0, 1).tolist())
    assert [s.level for s in found if s.level is Level.DRIFT] == [Level.DRIFT]
    assert found[-1].source == "confidence"
    assert 3000 < found[-1].offset < 3200


def test_stationary_confidence_gives_no_false_alarm_in_50_000() -> None:
    sure = np.random.default_rng(0).beta(5, 2, 50_000)
    assert [s for s in signals(confidence_watch(), sure.tolist()) if s.level is Level.DRIFT] == []


def test_predictions_without_an_answer_count_for_nothing() -> None:
    assert signals(confidence_watch(), [float("nan")] * 5000) == []


def test_a_new_model_begins_a_new_stream_of_errors() -> None:
    watch = error_watch()
    signals(watch, [0.0] * 2000)
    watch.detector.reset()
    assert signals(watch, [float(v) for v in errors("stationary", 1)[:CHANGE]]) == []


def test_watches_that_share_a_cooldown_give_one_signal() -> None:
    shared = Cooldown(1000)
    watches = [StreamWatch("error", ADWIN(), shared), confidence_watch(shared)]
    readings = rising(0, 0)
    found = []
    for start in range(0, 8000, 100):
        for watch in watches:
            found += signals(watch, readings[start : start + 100], start)
    assert [s.level for s in found if s.level is Level.DRIFT] == [Level.DRIFT]


def test_errors_of_values_are_bounded_and_keep_their_order() -> None:
    wrong = np.array([0.0, 1.0, 3.0, 1e12])
    small = bounded(wrong, 1.0)
    assert (np.diff(small) > 0).all()
    assert small.max() <= 1
    assert np.isnan(bounded(np.array([np.nan, np.inf]), 1.0)).all()
    assert bounded(np.array([0.0, 1.0]), 0.0).tolist() == [0.0, 1.0]


def test_bounded_errors_of_a_regression_drift_when_they_double() -> None:
    rng = np.random.default_rng(0)
    wrong = np.abs(rng.normal(0, 50, 12_000)) * np.where(np.arange(12_000) < 10_000, 1, 2)
    found = [s for s in signals(error_watch(), bounded(wrong, 40.0).tolist()) if s.level is Level.DRIFT]
    assert len(found) == 1
    assert 10_000 < found[0].offset < 10_300


@given(st.lists(st.tuples(st.sampled_from(Level), st.integers(0, 50)), max_size=200), st.integers(0, 300))
def test_passed_levels_keep_their_distance(steps: list[tuple[Level, int]], quiet: int) -> None:
    cooldown, position = Cooldown(quiet), 0
    last = {Level.WARNING: -quiet, Level.DRIFT: -quiet}
    for level, gap in steps:
        position += gap
        passed = cooldown.passed(level, position)
        assert passed in (level, Level.NONE)
        if passed is not Level.NONE:
            assert position - last[passed] >= quiet
            assert position - last[Level.DRIFT] >= quiet
            last[passed] = position


def test_a_drift_after_a_warning_passes_at_once() -> None:
    cooldown = Cooldown(100)
    assert cooldown.passed(Level.WARNING, 5) is Level.WARNING
    assert cooldown.passed(Level.DRIFT, 6) is Level.DRIFT


def test_a_warning_zone_without_end_is_one_warning() -> None:
    cooldown = Cooldown(10)
    passed = [cooldown.passed(Level.WARNING, at) for at in range(1000)]
    assert passed.count(Level.WARNING) == 1
    assert cooldown.passed(Level.WARNING, 1009) is Level.WARNING


def test_a_late_label_of_an_old_sample_brings_nothing_new() -> None:
    cooldown = Cooldown(10)
    cooldown.passed(Level.DRIFT, 500)
    assert cooldown.passed(Level.DRIFT, 20) is Level.NONE


def test_a_cooldown_comes_back_as_it_was() -> None:
    cooldown = Cooldown(100)
    cooldown.passed(Level.DRIFT, 500)
    assert Cooldown.from_json(cooldown.to_json()) == cooldown
    with pytest.raises(TrainingError, match="expected int, got 'long'"):
        Cooldown.from_json({"quiet": "long"})
