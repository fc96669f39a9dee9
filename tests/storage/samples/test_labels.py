"""Labels that contradict each other: counted, the last one wins, and too many are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.stream.sample import LabelUpdate
from tests.storage.stream import REGRESS_TWO, START, batch, open_log

if TYPE_CHECKING:
    from edged.domain.stream.sample import LabelValue
    from edged.storage.samples.log import SampleLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SampleLog]:
    with open_log(tmp_path, holdout=0.0, relabels=2) as opened:
        opened.commit(batch(1, 3))
        yield opened


def say(log: SampleLog, *labels: LabelValue, offset: int = 1) -> None:
    for label in labels:
        log.commit(None, [LabelUpdate(offset, label, START)])


def held(log: SampleLog) -> dict[int, float]:
    window = log.training_window(0, 10)
    return dict(zip(window.offsets.tolist(), window.y[:, 0].tolist(), strict=True))


def test_the_last_one_wins_and_contradictions_are_counted(log: SampleLog) -> None:
    say(log, 0.0, 0.0, 1.0)
    say(log, 1.0, offset=2)
    assert held(log) == {1: 1.0, 2: 1.0}
    counters = log.counters()
    assert (counters.labels, counters.relabelled, counters.contradicted) == (2, 2, 1)


def test_a_sample_with_too_many_labels_is_learned_from_no_more(log: SampleLog) -> None:
    say(log, 0.0, 1.0, 0.0)
    assert held(log) == {1: 0.0}
    say(log, 1.0)
    assert held(log) == {}
    say(log, 1.0, 1.0, 0.0)
    assert held(log) == {}, "nothing makes it trustworthy again"
    assert log.counters().contradicted == 3
    assert log.labelled_since(0) == 0


def test_labels_of_one_commit_contradict_each_other_too(log: SampleLog) -> None:
    log.commit(None, [LabelUpdate(2, float(number % 2), START) for number in range(4)])
    assert held(log) == {}
    assert log.counters().contradicted == 3


def test_the_count_of_holdout_labels_stays_exact(tmp_path: Path) -> None:
    with open_log(tmp_path / "other", holdout=1.0, relabels=0) as log:
        log.commit(batch(1, 4, labelled=True))
        assert log.counters().holdout_labels == 4
        say(log, 0.0)
        assert log.counters().holdout_labels == len(log.holdout_window(9)) == 3


def test_vectors_are_compared_as_they_are_stored(tmp_path: Path) -> None:
    with open_log(tmp_path / "other", REGRESS_TWO, holdout=0.0, relabels=2) as log:
        log.commit(batch(1, 1))
        say(log, (0.1, 2.0), (0.1, 2.0), (0.1, 3.0))
        assert log.counters().contradicted == 1
        np.testing.assert_array_equal(log.training_window(0, 5).y, np.array([[0.1, 3.0]], np.float32))
