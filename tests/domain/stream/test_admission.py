"""Floods and wrong clocks, before anything is stored."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.stream import admission
from edged.domain.stream.admission import AdmissionControl, AdmissionRules

NOW = 1_800_000_000.0
DAY = 86400.0


def test_a_key_may_send_its_burst_and_then_its_rate() -> None:
    guard = AdmissionControl(AdmissionRules(key_rate=2.0, key_burst=5), 1)
    assert sum(guard.admit("loud", 0.0) for _ in range(100)) == 5
    assert sum(guard.admit("quiet", 0.0) for _ in range(3)) == 3
    assert sum(guard.admit("loud", 10.0) for _ in range(100)) == 5, "no more than a burst is saved up"
    admitted = sum(guard.admit("loud", 10.0 + tick / 100) for tick in range(1, 1001))
    assert 19 <= admitted <= 21
    assert guard.flooded == 95 + 95 + 1000 - admitted


def test_keys_that_are_made_up_do_not_fill_the_memory() -> None:
    guard = AdmissionControl(AdmissionRules(key_rate=1.0, key_burst=1), 1)
    assert guard.admit("known", 0.0)
    for number in range(admission.MOST_KEYS + 100):
        assert guard.admit(f"k{number}", 0.0)
        guard.admit("known", 0.0)
    assert not guard.admit("known", 0.0), "what is used stays"
    assert len(guard._buckets) <= admission.MOST_KEYS  # noqa: SLF001  what is bounded is inside


def test_beyond_the_rate_acknowledgements_wait() -> None:
    guard = AdmissionControl(AdmissionRules(rate=100.0), 1)
    assert guard.pause(100, 0.0) == 0.0
    assert guard.pause(50, 0.0) == pytest.approx(0.5)
    assert guard.pause(50, 0.5) == pytest.approx(0.5)
    assert guard.pause(10, 5.0) == 0.0
    assert AdmissionControl(AdmissionRules(), 1).pause(10**6, 0.0) == 0.0


def test_event_times_that_cannot_be_are_replaced_by_the_arrival() -> None:
    guard = AdmissionControl(AdmissionRules(skew=DAY, late=7 * DAY), 1)
    times = [None, NOW - 5, NOW + DAY - 1, NOW + DAY + 1, NOW - 8 * DAY, 0.0]
    expected = [NOW, NOW - 5, NOW + DAY - 1, NOW, NOW, NOW]
    np.testing.assert_array_equal(guard.event_times(times, NOW), expected)
    assert guard.skewed == 3


def test_a_device_whose_clock_is_not_set_judges_nobody() -> None:
    guard = AdmissionControl(AdmissionRules(skew=DAY, late=DAY), 1)
    np.testing.assert_array_equal(guard.event_times([NOW, 5.0], 100.0), [NOW, 5.0])
    assert guard.skewed == 0
