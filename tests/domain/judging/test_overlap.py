"""Of windows that share readings only those that lie apart are evidence."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.judging.paired_test import apart, block_of, judged_on
from edged.domain.stream.windowing import WindowRules
from edged.storage.samples.log import SampleLog
from tests.storage.stream import batch, open_log

Rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), unique=True, max_size=80)


@given(Rows, st.integers(1, 9))
def test_none_is_close_to_another_and_none_is_left_out_for_nothing(
    rows: list[tuple[int, int]], block: int
) -> None:
    keys, places = np.array(rows, np.int64).reshape(-1, 2).T
    keep = apart(keys, places, block)
    kept = [row for row, stays in zip(rows, keep, strict=True) if stays]
    for (key, place), (other, elsewhere) in itertools.combinations(kept, 2):
        assert key != other or abs(place - elsewhere) >= block
    for (key, place), stays in zip(rows, keep, strict=True):
        assert stays or any(key == other and 0 < at - place < block for other, at in kept)


@pytest.mark.parametrize(("size", "stride", "block"), [(64, 64, 1), (64, 100, 1), (64, 32, 2), (64, 24, 3)])
def test_a_block_is_as_long_as_windows_overlap(size: int, stride: int, block: int) -> None:
    assert block_of(WindowRules(size, stride)) == block
    assert block_of(None) == 1


@pytest.mark.parametrize("keys", [1, 3])
def test_the_holdout_of_a_log_is_thinned_key_by_key(tmp_path: Path, keys: int) -> None:
    rules = WindowRules(40, 10)
    with open_log(tmp_path, holdout=0.3) as log:
        log.commit(batch(1, 2000, labelled=True, keys=keys))
        assert isinstance(judged_on(log, None), SampleLog)
        thinned = judged_on(log, rules)
        for found in (thinned.holdout_window(50), thinned.older_holdout(100, 1500, 0, after_seq=200)):
            gaps = [np.diff(found.offsets[found.offsets % keys == key]) for key in range(keys)]
            assert min(gap.min() for gap in gaps) >= 4 * keys
        newest = thinned.holdout_window(50)
        assert len(newest) == 50
        assert newest.offsets[-1] == log.holdout_window(1).offsets[0]
        assert len(thinned.training_window(0, 5000)) == len(log.training_window(0, 5000))


def test_places_are_those_of_a_key(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.commit(batch(1, 100, keys=2))
        codes, places = log.places(np.array([11, 12, 31, 14]))
        assert codes.tolist() == [codes[0], codes[1], codes[0], codes[1]]
        assert (places[2] - places[0], places[3] - places[1]) == (10, 1)
        assert [len(part) for part in log.places(np.empty(0, np.int64))] == [0, 0]
