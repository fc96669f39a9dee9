"""Samples over time for pictures: exact counts, all rows of a short stretch, an even part of a long one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edged.domain.stream.sample import Batch, LabelUpdate
from edged.domain.stream.schema import Schema
from edged.storage.samples.log import SampleLog
from edged.storage.samples.timeline import MOST_BYTES, MOST_ROWS, PER_RANGE, RANGES, TimelineReader

SCHEMA = Schema(("temp", "vib"), 2, "classify", ("ok", "worn"))
MANY = 3 * MOST_ROWS


def batch(first: int, ts: np.ndarray, x: np.ndarray, key: str = "pump") -> Batch:
    n = len(ts)
    return Batch(
        np.arange(first, first + n), [key] * n, ts.astype(np.float64), ts.astype(np.float64),
        x.astype(np.float32), [None] * n, [None] * n,
    )  # fmt: skip


def opened(path: Path, schema: Schema, *batches: Batch) -> SampleLog:
    """A log for reading only, with its index."""
    with SampleLog.open(path, schema) as log:
        for one in batches:
            log.commit(one)
        log.index_times()
    return SampleLog.open(path, schema, readonly=True)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SampleLog]:
    """`MANY` samples of a pump, one a second, and ten of a fan that come late and in reverse."""
    ts = np.arange(MANY)
    pump = batch(1, ts, np.stack([np.sin(ts / 300), ts], axis=1))
    fan = batch(MANY + 1, np.arange(10)[::-1] + 0.5, np.stack([np.arange(10), np.ones(10)], axis=1), "fan")
    with opened(tmp_path / "samples.db", SCHEMA, pump, fan) as made:
        yield made


def test_keys_ends_and_counts_are_exact(log: SampleLog) -> None:
    reader = TimelineReader(log, SCHEMA)
    assert (reader.keys(10), reader.keys(1), reader.newest_key()) == (["fan", "pump"], ["fan"], "fan")
    assert (reader.ends("pump"), reader.ends("fan"), reader.ends("x")) == (
        (0.0, MANY - 1.0),
        (0.5, 9.5),
        None,
    )
    assert reader.count("pump", 10.0, 19.0) == 10
    assert reader.count("pump", 10.5, 10.9) == 0
    assert reader.count("pump", 0.0, 1e11) == MANY


def test_of_a_short_stretch_all_rows_come_in_order_of_time(log: SampleLog) -> None:
    reader = TimelineReader(log, SCHEMA)
    rows = reader.read("pump", 100.0, 100.0 + MOST_ROWS - 1, [1])
    assert (rows.count, rows.every) == (MOST_ROWS, 1)
    assert rows.ts.tolist() == list(range(100, 100 + MOST_ROWS))
    assert rows.low[:, 0].tolist() == rows.high[:, 0].tolist() == rows.ts.tolist()
    fan = reader.read("fan", 0.0, 10.0, [0, 1])
    assert fan.ts.tolist() == [i + 0.5 for i in range(10)]
    assert fan.low[:, 0].tolist() == list(range(9, -1, -1))
    assert fan.offsets[0] == MANY + 10


def test_of_a_long_stretch_an_even_part_is_read(log: SampleLog) -> None:
    rows = TimelineReader(log, SCHEMA).read("pump", 0.0, MANY - 1.0, [0])
    assert rows.count == MANY
    assert len(rows.ts) == RANGES * PER_RANGE <= MOST_ROWS
    assert rows.every == MANY // len(rows.ts)
    assert (np.diff(rows.ts) > 0).all()
    share = np.histogram(rows.ts, bins=30, range=(0, MANY))[0] / len(rows.ts)
    assert share.max() < 1.2 * share.min()
    assert rows.low.min() < -0.99
    assert rows.high.max() > 0.99


def test_there_is_nothing_where_nothing_is(log: SampleLog) -> None:
    reader = TimelineReader(log, SCHEMA)
    for key, first, last in (("pump", 1e6, 2e6), ("pump", 10.2, 10.8), ("nobody", 0.0, 1e9)):
        rows = reader.read(key, first, last, [0, 1])
        assert (rows.count, rows.every, rows.low.shape) == (0, 1, (0, 2))


def test_labels_are_those_that_count(tmp_path: Path) -> None:
    path, ts = tmp_path / "samples.db", np.arange(4)
    with SampleLog.open(path, SCHEMA) as writer:
        writer.commit(batch(1, ts, np.ones((4, 2))), [LabelUpdate(2, 1.0, 9.0), LabelUpdate(3, 0.0, 9.0)])
        writer.index_times()
        writer.exclude([3])
        with SampleLog.open(path, SCHEMA, readonly=True) as log:
            assert TimelineReader(log, SCHEMA).read("pump", 0, 9, [0]).y == [None, 1.0, None, None]


def test_of_windows_the_least_and_the_largest_reading_is_shown_and_few_bytes_are_read(tmp_path: Path) -> None:
    steps = 50_000
    schema = Schema(("temp", "vib"), 2 * steps, "regress", steps=steps)
    x = np.zeros((40, steps, 2))
    x[:, 7, 1], x[:, 9, 1] = 3.0, -2.0
    with opened(tmp_path / "samples.db", schema, batch(1, np.arange(40), x.reshape(40, -1))) as log:
        rows = TimelineReader(log, schema).read("pump", 0, 40, [1])
        assert rows.count == 40
        assert len(rows.ts) == MOST_BYTES // (4 * 2 * steps)
        assert set(rows.low[:, 0].tolist()) == {-2.0}
        assert set(rows.high[:, 0].tolist()) == {3.0}


def test_a_model_is_asked_about_rows_that_are_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "samples.db"
    with opened(path, SCHEMA, batch(1, np.arange(4), np.ones((4, 2)))) as log:
        with sqlite3.connect(path) as db:
            db.execute("UPDATE samples SET x = zeroblob(8) WHERE offset = 2")
            db.execute("UPDATE samples SET x = x'00' WHERE offset = 3")
        db.close()
        reader = TimelineReader(log, SCHEMA)
        found, x = reader.inputs([1, 2, 3, 4, 5])
        assert (found, x.tolist()) == ([1, 4], [[1.0, 1.0], [1.0, 1.0]])
        assert reader.read("pump", 0, 9, [0]).offsets.tolist() == [1, 2, 4]
        assert reader.inputs([])[1].shape == (0, 2)
