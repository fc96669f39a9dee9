"""Which rows a batch is made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edged.domain.stream.sample import Window
from edged.domain.training.batch_pool import (
    KNOWN_LABELS,
    BatchMix,
    BatchPool,
    LabelForm,
    Remembered,
    RowCache,
    capped,
    within_shares,
)
from edged.errors import NoDataError


def window(offsets: range) -> Window:
    ids = np.asarray(offsets, np.int64)
    return Window(ids, ids, ids[:, None].astype(np.float32), np.zeros((len(ids), 1), np.float32))


def pool(excluded: set[int] | None = None) -> BatchPool:
    # 0-9 were remembered, of which 8 and 9 lately; 9 has a new label and is new again.
    remembered = Remembered(window(range(10)), np.array([8, 9]), np.arange(9))
    return BatchPool(window(range(9, 13)), remembered, LabelForm("cross_entropy", 2), excluded or set())


def test_a_batch_has_its_shares_of_new_recent_and_old_rows() -> None:
    rows = pool()
    drawn = rows.offsets[rows.draw(400, BatchMix(0.5, 0.25), np.random.default_rng(0))]
    assert set(drawn[:200].tolist()) == {9, 10, 11, 12}
    assert set(drawn[200:300].tolist()) == {8}
    assert set(drawn[300:].tolist()) == set(range(9))
    assert rows.offsets.tolist() == [9, 10, 11, 12, *range(9)]


def test_excluded_rows_are_not_drawn_from_any_group() -> None:
    rows = pool({8, 10, 0})
    drawn = set(rows.offsets[rows.draw(500, BatchMix(0.3, 0.3), np.random.default_rng(0))].tolist())
    assert drawn == {9, 11, 12, 1, 2, 3, 4, 5, 6, 7}


def test_a_pool_without_rows_says_so() -> None:
    with pytest.raises(NoDataError, match="infinite or NaN"):
        pool(set(range(13)))


Offsets = np.ndarray[tuple[int], np.dtype[np.int64]]


class Shelf:
    """Samples by offset, that count how often their rows were read."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.label = 0.0

    def rows(self, offsets: Offsets) -> Window:
        self.reads.append(len(offsets))
        there = offsets[offsets != 3]
        y = np.full((len(there), 1), self.label, np.float32)
        return Window(there, there + 100, there[:, None].astype(np.float32), y)


def test_only_rows_that_are_new_to_the_memory_are_read() -> None:
    shelf = Shelf()
    cache = RowCache(shelf)
    cache.rows(np.arange(2, 8), 0)
    again = cache.rows(np.array([1, 4, 6, 9]), 0)
    assert again.offsets.tolist() == [1, 4, 6, 9]
    assert again.seq.tolist() == [101, 104, 106, 109]
    assert again.x[:, 0].tolist() == [1, 4, 6, 9]
    assert shelf.reads == [6, 2]


def test_a_corrected_label_is_read_again() -> None:
    shelf = Shelf()
    cache = RowCache(shelf)
    cache.rows(np.arange(5), 0)
    shelf.label = 1.0
    assert cache.rows(np.arange(5), 0).y.sum() == 0
    assert cache.rows(np.arange(5), 1).y.sum() == 4


def shares(sources: list[int], usual: dict[int, int]) -> dict[int, int]:
    """How many rows of each source are taken."""
    codes = np.array(sources, np.int64)
    taken = codes[within_shares(codes, usual)]
    return {code: int((taken == code).sum()) for code in sorted(set(sources))}


def test_a_new_source_that_floods_gives_a_quarter() -> None:
    assert shares([1] * 30 + [2] * 970, {1: 1000}) == {1: 30, 2: 243}, "a quarter of its own at least"
    assert shares([1] * 600 + [2] * 400, {1: 1000}) == {1: 600, 2: 200}


def test_a_source_may_double_its_share() -> None:
    assert shares([1] * 100 + [2] * 900, {1: 600, 2: 400}) == {1: 100, 2: 400}
    assert shares([1] * 100 + [2] * 900, {1: 500, 2: 500}) == {1: 100, 2: 900}


def test_the_only_source_is_not_bounded_nor_what_is_not_known() -> None:
    assert shares([1] * 40, {1: 500}) == {1: 40}
    assert shares([0] * 40 + [1] * 10, {1: 500}) == {0: 40, 1: 10}
    assert shares([2] * 40, {1: KNOWN_LABELS - 1}) == {2: 40}, "too few labels to know what is usual"


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_of_few_rows_something_is_left(rows: int) -> None:
    assert shares([2] * rows, {1: 1000}) == {2: 1}


def test_what_is_left_out_is_spread_evenly() -> None:
    sources = np.array([1, 2, 2, 2] * 25, np.int64)
    taken = np.flatnonzero(within_shares(sources, {1: 1000}) & (sources == 2))
    assert np.diff(taken).max() <= 7, "every fifth row, of those that are its own"


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
