"""Floods and wrong clocks, before anything is stored."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.stream import admission
from edged.domain.stream.admission import KNOWN, LASTING, AdmissionControl, AdmissionRules, PlausibleRange

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
    guard = AdmissionControl(AdmissionRules(skew=DAY), 1)
    times = [None, NOW - 5, NOW + DAY - 1, NOW + DAY + 1, NOW - 8 * DAY, 0.0]
    expected = [NOW, NOW - 5, NOW + DAY - 1, NOW, NOW - 8 * DAY, 0.0]
    np.testing.assert_array_equal(guard.event_times(times, NOW), expected)
    assert guard.skewed == 1


def test_a_device_whose_clock_is_not_set_judges_nobody() -> None:
    guard = AdmissionControl(AdmissionRules(skew=DAY), 1)
    np.testing.assert_array_equal(guard.event_times([NOW, 5.0], 100.0), [NOW, 5.0])
    assert guard.skewed == 0


def usual(rows: int, seed: int = 0) -> np.ndarray:
    """Readings of three features around 20, one of which is constant, `(rows, 1, 3)`."""
    x = 20 + np.random.default_rng(seed).normal(size=(rows, 1, 3)).astype(np.float32)
    x[:, :, 2] = 5.0
    return x


@pytest.mark.parametrize("value", [1e6, -1e9, 3e38])
def test_a_value_that_cannot_be_is_found_and_widens_nothing(value: float) -> None:
    guard, x = AdmissionControl(AdmissionRules(), 3), usual(400)
    assert not guard.implausible_values(["k"] * 200, x[:200]).any()
    x[250, 0, 1] = x[300, 0, 1] = value
    found = guard.implausible_values(["k"] * 200, x[200:])
    assert np.argwhere(found).tolist() == [[50, 1], [100, 1]]
    assert guard.implausible == 2


def test_a_glitch_among_the_first_rows_does_not_hide_the_next() -> None:
    usual_range, x = PlausibleRange(), usual(KNOWN + 10)
    x[[10, 11, KNOWN + 5], 0, 0] = 1e9
    assert not usual_range.outside(["k"] * KNOWN, x[:KNOWN]).any()
    assert np.argwhere(usual_range.outside(["k"] * 10, x[KNOWN:])).tolist() == [[5, 0]]


@pytest.mark.parametrize("together", [1, 7, 400])
def test_what_lasts_is_followed_however_far_it_moved(together: int) -> None:
    usual_range, x = PlausibleRange(), usual(400)
    x[200:, 0, 0] += 1e6
    found = np.concatenate(
        [usual_range.outside(["k"] * len(part), part) for part in np.split(x, range(together, 400, together))]
    )
    if together == 400:
        assert not found.any(), "what comes first of all is believed"
        return
    assert np.flatnonzero(found[:, 0]).tolist() == list(range(200, 200 + LASTING))


def test_a_broken_sensor_among_others_stays_outside_as_long_as_it_sends_now_and_then_what_can_be() -> None:
    usual_range, x = PlausibleRange(), usual(1000)
    x[500::3, 0, 0] = 1e6
    assert usual_range.outside(["k"] * 1000, x[:500].repeat(2, axis=0)).sum() == 0
    found = usual_range.outside(["k"] * 500, x[500:])
    assert np.flatnonzero(found[:, 0]).tolist() == list(range(0, 500, 3))


def test_each_key_is_believed_by_itself() -> None:
    usual_range, x = PlausibleRange(), usual(400)
    keys = ["good", "bad"] * 200
    x[201:241:2, 0, 0] = 1e6  # twenty of one key in a row, with the other's between them
    usual_range.outside(keys[:200], x[:200])
    assert usual_range.outside(keys[200:], x[200:])[:, 0].sum() == LASTING


def test_a_glitch_in_a_window_does_not_last_by_being_in_many() -> None:
    usual_range, x = PlausibleRange(), usual(400)[:, 0]
    x[300, 1] = 1e6
    windows = np.stack([x[i : i + 50] for i in range(350)])
    usual_range.outside(["k"] * 200, windows[:200])
    found = usual_range.outside(["k"] * 150, windows[200:])
    assert np.flatnonzero(found[:, 1]).tolist() == list(range(51, 101))


def test_a_feature_that_was_constant_may_become_anything() -> None:
    usual_range, x = PlausibleRange(), usual(200)
    usual_range.outside(["k"] * 200, x)
    x[:, :, 2] = 1e5
    assert not usual_range.outside(["k"] * 200, x).any()
