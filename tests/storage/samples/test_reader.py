from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.stream.sample import LabelUpdate
from tests.storage.stream import START, batch, inputs, open_log

if TYPE_CHECKING:
    from edged.storage.samples.log import SampleLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SampleLog]:
    """3000 samples, each labelled, a fifth of them holdout: label order is the order of arrival."""
    with open_log(tmp_path, holdout=0.2) as opened:
        for first in range(1, 3001, 600):
            opened.commit(batch(first, 600, labelled=True))
        yield opened


def test_a_window_is_contiguous_and_of_float32(log: SampleLog) -> None:
    window = log.training_window(0, 10_000)
    assert window.x.dtype == window.y.dtype == np.float32
    assert window.x.flags.c_contiguous
    assert window.y.flags.c_contiguous
    assert window.y.shape == (len(window), 1)
    assert window.x.tolist() == inputs(window.offsets).tolist()


def test_the_newest_are_taken_and_come_oldest_first(log: SampleLog) -> None:
    everything = log.training_window(0, 10_000).seq
    assert log.training_window(0, 100).seq.tolist() == everything[-100:].tolist()
    assert (np.diff(log.training_window(0, 2000).seq) > 0).all()


def test_a_window_lies_between_two_positions(log: SampleLog) -> None:
    everything = log.training_window(0, 10_000).seq
    between = everything[(everything > 500) & (everything <= 700)]
    assert log.training_window(500, 10_000, upto_seq=700).seq.tolist() == between.tolist()
    assert log.training_window(500, 10, upto_seq=700).seq.tolist() == between[-10:].tolist()
    assert len(log.training_window(3000, 10)) == 0
    assert log.labelled_since(500) == (everything > 500).sum()


def test_the_holdout_ends_before_a_position(log: SampleLog) -> None:
    everything = log.holdout_window(10_000).seq
    before = everything[everything < 1000]
    assert log.holdout_window(50, before_seq=1000).seq.tolist() == before[-50:].tolist()


def test_training_and_holdout_share_nothing(log: SampleLog) -> None:
    training, holdout = log.training_window(0, 10_000).offsets, log.holdout_window(10_000).offsets
    assert len(np.intersect1d(training, holdout)) == 0
    assert len(training) + len(holdout) == 3000


def test_the_older_holdout_is_spread_over_all_of_it(log: SampleLog) -> None:
    before = log.holdout_window(10_000, before_seq=2500).seq
    chosen = log.older_holdout(20, 2500).seq
    assert len(chosen) == 20
    assert set(chosen.tolist()) <= set(before.tolist())
    edges = np.arange(21) * len(before) // 20
    stretch = np.searchsorted(edges, np.searchsorted(before, chosen), side="right") - 1
    assert stretch.tolist() == list(range(20))
    assert log.older_holdout(20, 2500).seq.tolist() == chosen.tolist()
    assert log.older_holdout(10_000, 2500).seq.tolist() == before.tolist()
    assert len(log.older_holdout(20, 0)) == 0


def test_rows_come_in_the_order_asked_for_without_those_that_are_missing(log: SampleLog) -> None:
    wanted = np.array([2999, 5, 9999, 5, 0, 17])
    window = log.rows(wanted)
    assert window.offsets.tolist() == [2999, 5, 5, 17]
    assert window.x.tolist() == inputs(np.array([2999, 5, 5, 17])).tolist()
    assert len(log.rows([])) == 0
    assert log.rows(range(3, 6)).offsets.tolist() == [3, 4, 5]


def test_rows_without_a_label_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with open_log(tmp_path / "other") as log:
        log.commit(batch(1, 3), [LabelUpdate(2, 1.0, START)])
        assert log.rows([1, 2, 3]).offsets.tolist() == [2]


def test_a_window_can_be_divided(log: SampleLog) -> None:
    window = log.training_window(0, 10)
    assert window.take(np.array([1, 0])).seq.tolist() == window.seq[[1, 0]].tolist()
