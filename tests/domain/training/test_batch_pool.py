"""Which rows a batch is made of."""

import numpy as np
import pytest

from edged.domain.stream.sample import Window
from edged.domain.training.batch_pool import BatchPool, LabelForm, Remembered
from edged.domain.training.replay import BatchMix
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
