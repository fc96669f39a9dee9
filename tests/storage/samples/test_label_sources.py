"""Where labels came from: kept with them, bounded where one gives too many, set aside and taken back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.stream.sample import LabelUpdate
from edged.errors import StorageError
from edged.storage.samples import tables
from tests.storage.stream import batch, open_log

if TYPE_CHECKING:
    from edged.storage.samples.log import SampleLog


def labelled(log: SampleLog, first: int, n: int, source: str, label: float = 1.0) -> None:
    log.commit(None, [LabelUpdate(offset, label, 1.0, source) for offset in range(first, first + n)])


def sources(log: SampleLog) -> dict[int, str]:
    with log.looking() as db:
        return dict(
            db.execute("SELECT offset, name FROM samples JOIN label_sources ON source = number").fetchall()
        )


def unlabelled(log: SampleLog, n: int, first: int = 1) -> None:
    made = batch(first, n)
    log.commit(replace(made, labels=[None] * n))


def test_the_newest_label_tells_the_source(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        unlabelled(log, 4)
        labelled(log, 1, 2, "labels/a")
        labelled(log, 2, 2, "labels/b", 0.0)
        labelled(log, 4, 1, "")
        assert sources(log) == {1: "labels/a", 2: "labels/b", 3: "labels/b"}
        log.commit(replace(batch(5, 2), sources=["s/1", ""]))
        assert sources(log)[5] == "s/1"
        assert 6 not in sources(log)


def test_sources_that_are_made_up_do_not_fill_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST_SOURCES", 3)
    with open_log(tmp_path) as log:
        unlabelled(log, 6)
        for offset in range(1, 7):
            labelled(log, offset, 1, f"labels/{offset}")
        assert list(sources(log).values()) == ["labels/1", "labels/2", "labels/3", "", "", ""]


def test_excluded_samples_are_read_by_no_window(tmp_path: Path) -> None:
    with open_log(tmp_path, holdout=0.3) as log:
        unlabelled(log, 40)
        labelled(log, 1, 20, "labels/a")
        labelled(log, 21, 20, "labels/b")
        seen, before = log.relabelled(), log.counters()
        log.exclude(list(range(11, 31)))
        assert log.relabelled() > seen, "whoever holds them reads them again"
        assert log.rows(np.arange(1, 41)).offsets.tolist() == [*range(1, 11), *range(31, 41)]
        labelled(log, 12, 1, "labels/b", 0.0)
        assert log.rows(np.arange(1, 41)).offsets.tolist() == [*range(1, 11), 12, *range(31, 41)]
        assert log.counters().holdout_labels < before.holdout_labels


def test_a_source_that_floods_fills_neither_the_batches_nor_the_holdout(tmp_path: Path) -> None:
    with open_log(tmp_path, holdout=0.2) as log:
        unlabelled(log, 2000)
        labelled(log, 1, 1000, "labels/a")
        learned = log.last_seq()
        for start in range(1001, 2001, 10):
            labelled(log, start, 9, "labels/flood")
            labelled(log, start + 9, 1, "labels/a")
        new = log.training_window(learned, 2000)
        taken = log.bounded(new)
        who = sources(log)
        flood = [offset for offset in taken.offsets.tolist() if who[offset] == "labels/flood"]
        assert len(taken) - len(flood) == sum(who[offset] == "labels/a" for offset in new.offsets.tolist())
        assert len(flood) <= len(new) / 4 + 1
        assert np.all(np.diff(taken.seq) > 0)
        judged = log.holdout_window(100).offsets.tolist()
        assert sum(who[offset] == "labels/flood" for offset in judged) <= 27


def test_the_only_source_is_not_bounded(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        unlabelled(log, 600)
        labelled(log, 1, 600, "labels/a")
        window = log.training_window(300, 1000)
        assert log.bounded(window) is window


def test_a_source_of_a_commit_that_failed_is_stored_with_the_next(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        broken = replace(batch(1, 2), sources=["labels/a", ""], labels=[(1.0, 2.0), None])
        with pytest.raises(StorageError):
            log.commit(broken)
        log.commit(replace(batch(1, 2), sources=["labels/b", "labels/a"]))
        assert sources(log) == {1: "labels/b", 2: "labels/a"}
        log.erase(labels=True)
        log.commit(replace(batch(3, 1), sources=["labels/a"]))
        assert sources(log) == {3: "labels/a"}
