from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.domain.seeded_rng import is_holdout


def test_the_assignment_is_fixed_for_ever() -> None:
    assert np.flatnonzero(is_holdout(np.arange(60), 0.1)).tolist() == [2, 32, 33, 41, 42, 43, 53]
    assert np.flatnonzero(is_holdout(np.arange(10**12, 10**12 + 30), 0.1)).tolist() == [28]


def test_the_share_is_met_whatever_the_period() -> None:
    offsets = np.arange(1_000_000)
    for period in (1, 2, 7, 24, 60, 100, 1024):
        share = is_holdout(offsets[::period], 0.1).mean()
        assert abs(share - 0.1) < 4 * np.sqrt(0.09 / len(offsets[::period]))


def test_none_and_all() -> None:
    assert not is_holdout(np.arange(1000), 0.0).any()
    assert is_holdout(np.arange(1000), 1.0).all()
    assert is_holdout(np.empty(0, np.int64), 0.5).shape == (0,)


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**62), min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_sample_depends_on_its_own_offset_and_stays_when_the_share_grows(
    offsets: list[int], share: float, other: float
) -> None:
    together = is_holdout(np.array(offsets), share)
    alone = [bool(is_holdout(np.array([offset]), share)[0]) for offset in offsets]
    assert together.tolist() == alone
    low, high = sorted((share, other))
    assert not (is_holdout(np.array(offsets), low) & ~is_holdout(np.array(offsets), high)).any()
