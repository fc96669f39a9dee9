"""No key fills more of a batch than it may."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edged.domain.stream.sample import Window
from edged.domain.training.batch_pool import BatchPool, LabelForm, Remembered, capped
from edged.domain.training.replay import BatchMix


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 12), min_size=1, max_size=200), st.floats(0.05, 1.0))
def test_the_cap_holds_and_nobody_else_gets_less(codes: list[int], share: float) -> None:
    array = np.array(codes, np.int64)
    weights = capped(array, share)
    keys, counts = np.unique(array, return_counts=True)
    if weights is None:
        assert counts.max() <= share * len(array) or len(keys) * share <= 1.0
        return
    assert weights.sum() == pytest.approx(1.0)
    parts = np.array([weights[array == key].sum() for key in keys])
    assert parts.max() <= share + 1e-9
    was = counts / len(array)
    assert (parts[was <= share] >= was[was <= share] - 1e-9).all()


def window(offsets: range) -> Window:
    n = len(offsets)
    ids = np.array(offsets, np.int64)
    return Window(ids, ids, np.zeros((n, 1), np.float32), np.zeros((n, 1), np.float32))


def test_batches_keep_to_the_cap_in_both_parts_and_after_exclusion() -> None:
    old = np.arange(1000, 2000)
    remembered = Remembered(window(range(1000, 2000)), old[-300:], old)
    pool = BatchPool(window(range(1000)), remembered, LabelForm("cross_entropy", 2), set())
    mix = BatchMix(0.25, 0.25)
    codes = np.where(np.arange(2000) % 10 == 0, np.arange(2000) % 7, 99)  # nine tenths are of one key
    rng = np.random.default_rng(0)

    def share() -> float:
        rows = np.concatenate([pool.draw(64, mix, rng) for _ in range(200)])
        return float((codes[rows] == 99).mean())

    assert share() > 0.87
    pool.cap(codes, 0.3)
    assert share() == pytest.approx(0.3, abs=0.02)
    pool.exclude(set(range(0, 2000, 20)))
    assert share() == pytest.approx(0.3, abs=0.02)
    drawn = np.concatenate([pool.draw(64, mix, rng) for _ in range(200)])
    assert not np.isin(pool.offsets[drawn], np.arange(0, 2000, 20)).any()
    assert (drawn < 1000).mean() == pytest.approx(0.25)
