"""Samples that leave the training data of a stream that labels itself, and come back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.device.learning.changes import AnomalyExclusion
from edged.domain.seeded_rng import is_holdout
from edged.domain.stream.anomaly import Anomalies, AnomalyRules
from tests.storage.stream import RECONSTRUCT, batch, open_log

if TYPE_CHECKING:
    from edged.storage.samples.log import SampleLog

HOLDOUT = 0.3


def filled(directory: Path, n: int = 60, keys: int = 2) -> SampleLog:
    log = open_log(directory, RECONSTRUCT, holdout=HOLDOUT)
    log.commit(batch(1, n, keys=keys))
    return log


def offsets(log: SampleLog, after: int = 0) -> list[int]:
    rows = [log.training_window(after, 1000).offsets, log.holdout_window(1000).offsets]
    return sorted(np.concatenate(rows).tolist())


def test_what_is_set_aside_is_in_no_window_and_not_counted(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        before = log.counters()
        aside = list(range(11, 31))
        log.exclude(aside)
        log.exclude(aside)  # once more changes nothing
        rest = [offset for offset in range(1, 61) if offset not in aside]
        assert offsets(log) == rest
        assert log.rows(np.arange(1, 61)).offsets.tolist() == rest
        assert log.labelled_since(0) == int((~is_holdout(np.array(rest), HOLDOUT)).sum())
        after = log.counters()
        assert after.holdout_labels == int(is_holdout(np.array(rest), HOLDOUT).sum())
        assert (after.rows, after.samples, after.labels) == (before.rows, before.samples, before.labels)


def test_what_comes_back_is_new_again(tmp_path: Path) -> None:
    with filled(tmp_path) as log:
        log.exclude([11, 12, 13, 14, 30])
        learned = log.last_seq()
        assert log.include("m0", 12) == 3
        assert offsets(log) == [i for i in range(1, 61) if i not in (11, 13)]
        new = np.concatenate([log.training_window(learned, 100).offsets, log.holdout_window(3).offsets])
        assert {12, 14, 30} <= set(new.tolist())
        assert log.counters().holdout_labels == len(log.holdout_window(1000))
        assert log.include("m0", 12) == 0
        log.commit(batch(61, 1))
        assert log.last_seq() == learned + 4


def test_samples_that_are_not_stored_yet_are_set_aside_later(tmp_path: Path) -> None:
    """The serving thread judges a batch before its commit."""
    found = Anomalies(AnomalyRules(raise_after=2, of=4))
    found.detect(["m0"] * 200, np.arange(-199, 1), np.zeros(200), np.random.default_rng(0).random(200))
    with filled(tmp_path, n=10, keys=1) as log:
        aside = AnomalyExclusion(found, log)
        found.detect(["m0"] * 6, np.arange(8, 14), np.arange(6.0), np.full(6, 9.0))
        assert aside.apply() == 0
        assert offsets(log) == list(range(1, 8))
        log.commit(batch(11, 5))
        aside.apply()
        assert offsets(log) == [*range(1, 8), 14, 15]
        found.accept()
        assert aside.apply() == 6
        assert offsets(log) == list(range(1, 16))


def test_what_is_accepted_before_it_is_stored_comes_back_all_the_same(tmp_path: Path) -> None:
    """Seconds go by between the two where samples wait for each other."""
    found = Anomalies(AnomalyRules(raise_after=2, of=4))
    found.detect(["m0"] * 200, np.arange(-199, 1), np.zeros(200), np.random.default_rng(0).random(200))
    with filled(tmp_path, n=10, keys=1) as log:
        aside = AnomalyExclusion(found, log)
        found.detect(["m0"] * 6, np.arange(8, 14), np.arange(6.0), np.full(6, 9.0))
        found.accept()
        assert aside.apply() == 0
        log.commit(batch(11, 5))
        assert aside.apply() == 6
        assert offsets(log) == list(range(1, 16))
