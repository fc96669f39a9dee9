"""What is watched of a model that serves."""

from __future__ import annotations

import numpy as np

from edged.domain.drift import Level, LiveDrift


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
        drifts = [signal for signal in live.take() if signal.level is Level.DRIFT]
        assert [signal.source for signal in drifts] == ["error"]
        assert 3000 < drifts[0].offset < 3200
        assert live.take() == []
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
    assert sum(signal.level is Level.DRIFT for signal in live.take()) == 1


def test_a_new_version_may_be_surer_or_less_sure_than_the_one_before() -> None:
    rng = np.random.default_rng(2)
    levels = {}
    for swaps in (True, False):
        live = LiveDrift(classes=True)
        for start in range(0, 6000, 100):
            sure = rng.uniform(0.3, 0.6, 100) + 0.3 * (start >= 3000)
            version = 1 + int(swaps and start >= 3000)
            live.confidence(sure.astype(np.float32), np.arange(start, start + 100), version)
        levels[swaps] = {signal.level for signal in live.take()}
    assert levels[True] == set()
    assert Level.DRIFT in levels[False], "the same change without a swap is one"
