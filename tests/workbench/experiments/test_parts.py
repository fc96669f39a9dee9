"""The split in the order of time, and which samples make a batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.errors import ConfigError, TrainingError
from edged.workbench.experiments.config import RecipeFile, SplitConfig
from edged.workbench.experiments.loading import gap_of, split_rows
from edged.workbench.experiments.trial import Batches
from edged.workbench.recordings.stream import Stream

SHARES = SplitConfig(train=0.5, validation=0.3, test=0.2)


@given(st.integers(200, 3000), st.integers(0, 20), st.sampled_from([0.0, 0.1, 0.2]))
def test_what_is_judged_on_comes_later_and_a_gap_before_it(n: int, gap: int, test: float) -> None:
    rows = np.arange(n, dtype=np.int64) * 2
    split = split_rows(rows, SplitConfig(train=0.6, validation=0.2, test=test), gap)
    assert split.train[0] == 0
    assert (split.validation[0] - split.train[-1]) // 2 == gap + 1
    if test:
        assert (split.test[0] - split.validation[-1]) // 2 == gap + 1
    else:
        assert len(split.test) == 0
    whole = np.concatenate([split.train, split.validation, split.test])
    assert (np.diff(whole) > 0).all()
    assert np.isin(whole, rows).all()


def test_a_part_that_is_too_small_is_named() -> None:
    with pytest.raises(ConfigError, match=r"split.test: the test part has 8 samples"):
        split_rows(np.arange(40), SHARES, 0)
    with pytest.raises(ConfigError, match=r"split.train: the train part has 0 samples"):
        split_rows(np.arange(100), SHARES, 60)


def a_stream(keys: list[str]) -> Stream:
    n = len(keys)
    x, known = np.zeros((n, 2), np.float32), np.ones(n, np.bool_)
    return Stream(x, x, np.arange(n, dtype=np.float64), keys, known, known, None)


@pytest.mark.parametrize(
    ("stream", "keys", "gap"),
    [
        ({"features": 2, "classes": 2}, ["a", "b"], 0),
        ({"features": 2, "target": "forecast", "horizon": 3}, ["a", "b"], 6),
        ({"features": 2, "classes": 2, "window": {"size": 8, "stride": 2}}, ["a"], 3),
    ],
)
def test_the_gap_is_as_wide_as_windows_and_forecasts_reach(
    stream: dict[str, object], keys: list[str], gap: int
) -> None:
    file = RecipeFile.model_validate({"stream": stream, "recipes": [{}]})
    assert gap_of(file, a_stream(keys)) == gap


def test_shuffled_batches_take_each_sample_once_an_epoch() -> None:
    rows = np.arange(100, 200, dtype=np.int64)
    batches = Batches(rows, 10, 2, None, np.random.default_rng(0))
    first, second = (np.concatenate(list(batches.epoch(number))) for number in (0, 1))
    assert batches.steps == 10
    assert sorted(first) == sorted(second) == rows.tolist()
    assert first.tolist() != second.tolist()


def test_replayed_batches_go_through_the_stream_with_their_share_of_what_was_before() -> None:
    rows = np.arange(120, dtype=np.int64) + 1000
    batches = Batches(rows, 8, 4, 0.75, np.random.default_rng(0))
    for number in range(4):
        begin = 1000 + 30 * number
        made = list(batches.epoch(number))
        assert len(made) == 15
        for batch in made:
            now = (batch >= begin) & (batch < begin + 30)
            assert len(batch) == 8
            assert int(now.sum()) == (2 if number else 8)
            assert ((batch < begin) | now).all()


def test_more_stretches_than_samples_are_refused_and_a_large_batch_is_all_there_is() -> None:
    with pytest.raises(TrainingError, match="5 samples cannot be cut into 6 stretches"):
        Batches(np.arange(5), 2, 6, 0.5, np.random.default_rng(0))
    (batch,) = Batches(np.arange(5), 64, 1, None, np.random.default_rng(0)).epoch(0)
    assert sorted(batch) == [0, 1, 2, 3, 4]
