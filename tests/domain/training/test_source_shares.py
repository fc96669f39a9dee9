"""What a source of labels may give at most: a quarter, or twice what is usual for it."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.training.batch_pool import KNOWN_LABELS, within_shares


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
