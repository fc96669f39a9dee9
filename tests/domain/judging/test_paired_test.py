from __future__ import annotations

import itertools
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.judging.paired_test import EXACT, apart, block_of, bootstrap, compare, judged_on, mcnemar
from edged.domain.stream.windowing import WindowRules
from edged.storage.samples.log import SampleLog
from tests.storage.stream import batch, open_log


@given(st.integers(0, 30), st.integers(0, 30))
def test_the_exact_test_is_the_binomial_tail(more: int, fewer: int) -> None:
    n = more + fewer
    assert mcnemar(more, fewer) == pytest.approx(sum(comb(n, k) for k in range(more, n + 1)) / 2**n, abs=1e-9)


def test_many_pairs_are_judged_as_a_few_less_are() -> None:
    half = EXACT // 2
    assert mcnemar(half + 41, half - 40) == pytest.approx(mcnemar(half + 40, half - 40), abs=2e-3)


def test_false_alarms_of_the_bootstrap_are_what_they_should_be() -> None:
    rng = np.random.default_rng(0)
    alarms = [bootstrap(rng.normal(size=60))[0] < 0.1 for _ in range(300)]
    assert 0.05 < np.mean(alarms) < 0.16


def test_the_bootstrap_is_seeded_and_sees_a_difference() -> None:
    difference = np.random.default_rng(1).normal(0.5, 1.0, 60)
    worse, better = bootstrap(difference)
    assert (worse, better) == bootstrap(difference)
    assert better < 0.01
    assert worse > 0.99


def test_equal_models_are_neither_better_nor_worse() -> None:
    errors = np.random.default_rng(2).random(50)
    found = compare("regress", errors, errors)
    assert (found.both, found.wins, found.losses, found.gain) == (50, 0, 0, 0.0)
    assert found.p_better == found.p_worse == 1.0


def test_a_gain_of_values_is_a_share_of_the_champions_error() -> None:
    found = compare("forecast", np.full(30, 9.0), np.full(30, 10.0))
    assert found.gain == pytest.approx(0.1)
    assert found.wins == 30


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
        for found in (thinned.holdout_window(50), thinned.older_holdout(100, 1500)):
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
