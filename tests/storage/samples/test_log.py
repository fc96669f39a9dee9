from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.seeded_rng import is_holdout
from edged.domain.stream.sample import LabelUpdate, Rejected
from edged.domain.stream.schema import Schema
from edged.errors import CorruptError, StorageError
from tests.storage.stream import (
    CLASSIFY,
    RECONSTRUCT,
    REGRESS_TWO,
    START,
    batch,
    inputs,
    open_log,
)

if TYPE_CHECKING:
    from edged.storage.samples.log import SampleLog


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SampleLog]:
    with open_log(tmp_path, holdout=0.0) as opened:
        yield opened


def rejected(number: int, reason: str = "not_json", size: int = 10) -> Rejected:
    return Rejected(START + number, "s/a", reason, b"x" * size, f"detail {number}", (number + 1, number))


def test_a_new_log_is_empty_and_counts_from_one(log: SampleLog) -> None:
    counters = log.counters()
    assert (counters.samples, counters.rows, counters.labels, counters.last_seq) == (0, 0, 0, 0)
    assert log.next_offset() == 1
    assert log.last_seq() == 0
    assert len(log.training_window(0, 10)) == 0


def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    with open_log(tmp_path, holdout=0.0) as log:
        log.commit(batch(1, 120, labelled=True, ids=True, packets=True))
    with open_log(tmp_path, holdout=0.0) as log:
        window = log.training_window(0, 1000)
        assert window.offsets.tolist() == list(range(1, 121))
        assert window.x.tobytes() == inputs(np.arange(1, 121)).tobytes()
        assert window.y[:, 0].tolist() == [float(offset % 2) for offset in range(1, 121)]
        assert log.next_offset() == 121


def test_counters_are_exact(log: SampleLog) -> None:
    log.commit(batch(1, 10, labelled=True), quarantined=[rejected(1)])
    log.commit(batch(11, 5))
    log.commit(labels=[LabelUpdate(11, 1.0, START), LabelUpdate(1, 0.0, START), LabelUpdate(99, 0.0, START)])
    counters = log.counters()
    assert (counters.samples, counters.rows) == (15, 15)
    assert (counters.labels, counters.relabelled, counters.orphaned) == (11, 1, 1)
    assert (counters.quarantined, counters.evicted, counters.last_seq) == (1, 0, 11)
    assert counters.bytes > 0


def test_a_late_label_takes_the_next_place_in_label_order(log: SampleLog) -> None:
    log.commit(batch(1, 4))
    log.commit(labels=[LabelUpdate(3, 1.0, START), LabelUpdate(1, 0.0, START)])
    log.commit(batch(5, 1, labelled=True), [LabelUpdate(5, 0.0, START), LabelUpdate(2, 1.0, START)])
    window = log.training_window(0, 10)
    assert window.offsets.tolist() == [3, 1, 5, 2]
    assert window.seq.tolist() == [1, 2, 3, 4]
    assert window.y[:, 0].tolist() == [1.0, 0.0, 0.0, 1.0]


def test_a_second_label_replaces_the_first_and_keeps_its_place(log: SampleLog) -> None:
    log.commit(batch(1, 2))
    log.commit(labels=[LabelUpdate(2, 0.0, START), LabelUpdate(2, 1.0, START + 1)])
    log.commit(labels=[LabelUpdate(1, 0.0, START)])
    window = log.training_window(0, 10)
    assert window.offsets.tolist() == [2, 1]
    assert window.y[:, 0].tolist() == [1.0, 0.0]
    assert (log.counters().labels, log.counters().relabelled) == (2, 1)


def test_several_targets_are_kept_as_vectors(tmp_path: Path) -> None:
    with open_log(tmp_path, REGRESS_TWO, holdout=0.0) as log:
        log.commit(batch(1, 3, labels=[(0.5, 2.0), None, (1.5, -3.0)]))
        log.commit(labels=[LabelUpdate(2, (7.0, 8.0), START)])
        window = log.training_window(0, 10)
        assert window.y.tolist() == [[0.5, 2.0], [1.5, -3.0], [7.0, 8.0]]
        assert window.y.dtype == np.float32
        assert window.y.flags.c_contiguous


def test_a_stream_that_labels_itself_has_its_inputs_as_targets(tmp_path: Path) -> None:
    with open_log(tmp_path, RECONSTRUCT, holdout=0.0) as log:
        log.commit(batch(1, 3))
        log.commit(batch(4, 2))
        window = log.training_window(1, 10)
        assert window.seq.tolist() == [2, 3, 4, 5]
        assert window.y.tolist() == window.x.tolist() == inputs(np.arange(2, 6)).tolist()
        assert log.counters().labels == 5


def test_the_holdout_is_decided_at_arrival_and_never_trained_on(tmp_path: Path) -> None:
    with open_log(tmp_path, holdout=0.25) as log:
        log.commit(batch(1, 200, labelled=True))
    with open_log(tmp_path, holdout=0.5) as log:
        held = is_holdout(np.arange(1, 201), 0.25)
        assert log.holdout_window(1000).offsets.tolist() == (1 + np.flatnonzero(held)).tolist()
        assert log.training_window(0, 1000).offsets.tolist() == (1 + np.flatnonzero(~held)).tolist()
        assert log.counters().holdout_labels == held.sum()
        assert log.labelled_since(0) == (~held).sum()


def test_late_labels_of_the_holdout_are_counted_as_such(tmp_path: Path) -> None:
    with open_log(tmp_path, holdout=1.0) as log:
        log.commit(batch(1, 5))
        log.commit(labels=[LabelUpdate(offset, 1.0, START) for offset in (2, 4, 4)])
        assert log.counters().holdout_labels == 2
        assert log.labelled_since(0) == 0


@pytest.mark.parametrize("offsets", [(3, 1), (2, 2), (0, 1)])
def test_an_offset_is_never_given_twice(log: SampleLog, offsets: tuple[int, int]) -> None:
    log.commit(batch(1, 1))
    wrong = batch(1, 2)
    wrong.offsets[:] = offsets
    with pytest.raises(StorageError, match="was given before or is out of order: the next one is 2"):
        log.commit(wrong)
    assert log.counters().samples == 1


def test_inputs_of_another_width_are_refused(log: SampleLog) -> None:
    with pytest.raises(StorageError, match=r"inputs of shape \(2, 4\) do not fit 2 samples of 3 features"):
        log.commit(batch(1, 2, width=4))


def test_a_commit_that_fails_stores_nothing_at_all(log: SampleLog) -> None:
    log.commit(batch(1, 5, labelled=True))
    before = log.counters()
    unfit = batch(6, 5, labels=[1.0, (1.0, 2.0), None, None, None])
    with pytest.raises(StorageError):
        log.commit(unfit, [LabelUpdate(1, 1.0, START)], [rejected(1)], [(5, 6)])
    assert log.counters() == before
    assert log.quarantine(10) == []
    log.commit(batch(6, 5))
    assert log.counters().samples == 10


def test_the_quarantine_keeps_the_newest_and_counts_all(tmp_path: Path) -> None:
    with open_log(tmp_path, quarantine_rows=3) as log:
        log.commit(quarantined=[rejected(1, size=9000), rejected(2, "shape")])
        log.commit(quarantined=[rejected(number) for number in range(3, 8)])
        log.commit(quarantined=[rejected(8, size=9000)])
        kept = log.quarantine(10)
        assert [item.detail for item in kept] == ["detail 8", "detail 7", "detail 6"]
        assert (kept[0].ts, kept[0].topic, kept[0].payload) == (START + 8, "s/a", b"x" * 4096)
        assert [item.detail for item in log.quarantine(1)] == ["detail 8"]
        assert log.quarantine_counts() == {"not_json": 7, "shape": 1}
        assert log.counters().quarantined == 8


def test_packets_of_all_messages_come_back_in_order_of_arrival(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.commit(batch(1, 2, packets=True), quarantined=[rejected(70)])
        log.commit(None, [LabelUpdate(1, 1.0, START)], packets=[(40, 41)])
        log.commit(batch(3, 1))
        log.commit(batch(4, 1, packets=True))
    with open_log(tmp_path) as log:
        assert log.recent_packets(100) == [(2, 7), (3, 14), (71, 70), (40, 41), (5, 28)]
        assert log.recent_packets(1) == [(40, 41), (5, 28)]


def test_the_largest_packet_id_and_checksum_fit(log: SampleLog) -> None:
    log.commit(packets=[(65_535, 2**32 - 1), (1, 0)])
    assert log.recent_packets(10) == [(65_535, 2**32 - 1), (1, 0)]


def test_a_reader_sees_what_the_writer_committed(tmp_path: Path, log: SampleLog) -> None:
    with open_log(tmp_path, readonly=True) as reader:
        log.commit(batch(1, 5, labelled=True))
        assert len(reader.training_window(0, 10)) == 5
        assert reader.counters().samples == 5
        with pytest.raises(StorageError, match="opened for reading only"):
            reader.commit(batch(6, 1))
        assert reader.evict(START) == 0


def test_a_log_that_does_not_exist_yet_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="there is no such database yet"):
        open_log(tmp_path, readonly=True)


def test_a_damaged_file_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "samples.db").write_bytes(b"\x00garbage" * 1000)
    with pytest.raises(CorruptError, match=r"samples\.db"):
        open_log(tmp_path)


@pytest.mark.parametrize("readonly", [True, False])
@pytest.mark.parametrize(
    ("schema", "what"),
    [
        (Schema(("a", "b"), 2, "classify", ("ok", "worn")), r"width '3', the configuration says '2'"),
        (Schema(("a", "c", "b"), 3, "classify", ("ok", "worn")), r"features 'a, b, c', .* 'a, c, b'"),
        (Schema(("a", "b", "c"), 3, "classify", ("worn", "ok")), r"classes 'ok, worn', .* 'worn, ok'"),
        (Schema(("a", "b", "c"), 3, "regress"), "task 'classify', the configuration says 'regress'"),
    ],
)
def test_a_log_of_another_stream_is_refused(
    tmp_path: Path, schema: Schema, what: str, readonly: bool
) -> None:
    open_log(tmp_path).close()
    with pytest.raises(StorageError, match=what):
        open_log(tmp_path, schema, readonly=readonly)


def test_classes_may_be_added_at_the_end(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    more = Schema(CLASSIFY.names, 3, "classify", ("ok", "worn", "broken"))
    open_log(tmp_path, more).close()
    with pytest.raises(StorageError, match="classes"):
        open_log(tmp_path)


def test_figures_can_be_asked_from_other_threads_while_samples_come(log: SampleLog) -> None:
    stop, seen, problems = threading.Event(), [], []

    def ask() -> None:
        try:
            while not stop.is_set():
                seen.append(log.counters().samples)
        except StorageError as problem:
            problems.append(problem)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for first in range(1, 2001, 20):
        log.commit(batch(first, 20, labelled=True))
    stop.set()
    for thread in asking:
        thread.join()
    assert problems == []
    assert all(count % 20 == 0 for count in seen)
    assert log.counters().samples == 2000


@pytest.mark.parametrize(
    "change",
    [
        "y = 1 - y", "x = substr(x, 1, 11) || x'00'", "x = x'00'", "x = NULL", "ts = ts + 1", "key = 'other'",
        "holdout = 1 - holdout", "key = CAST(x'ff' AS TEXT)", "y = 'text'",
    ],
)  # fmt: skip
def test_a_row_that_is_not_what_was_written_is_not_learned_from(tmp_path: Path, change: str) -> None:
    with open_log(tmp_path, holdout=0.0) as log:
        log.commit(batch(1, 5, labels=[0.0] * 5))
        log.commit(None, [LabelUpdate(2, 1.0, START)])
    with closing(sqlite3.connect(tmp_path / "samples.db", isolation_level=None)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        schema = (
            "UPDATE sqlite_master SET sql = replace(sql, 'x BLOB NOT NULL', 'x BLOB') WHERE name = 'samples'"
        )
        db.execute("PRAGMA writable_schema = ON")
        db.execute(schema)
    with closing(sqlite3.connect(tmp_path / "samples.db", isolation_level=None)) as db:
        assert db.execute(f"UPDATE samples SET {change} WHERE offset = 3").rowcount == 1  # noqa: S608
    with open_log(tmp_path, holdout=0.0) as log:
        window = log.training_window(0, 10)
        assert (window.offsets.tolist(), window.y[:, 0].tolist()) == ([1, 2, 4, 5], [0.0, 1.0, 0.0, 0.0])
        assert log.drop_damaged(10.0) == 1
        assert (log.counters().rows, log.drop_damaged(10.0)) == (4, 0)
        log.erase(labels=True)
        assert log.drop_damaged(10.0) == 0, "rows without their labels are whole"


def test_counts_that_are_damaged_are_damage(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.commit(batch(1, 5))
    with closing(sqlite3.connect(tmp_path / "samples.db", isolation_level=None)) as db:
        db.execute("UPDATE tally SET next_offset = 7")
    with open_log(tmp_path) as log, pytest.raises(CorruptError, match="counts"):
        log.counters()


def test_a_reader_beside_the_writer_knows_its_counts(tmp_path: Path) -> None:
    with open_log(tmp_path) as log, open_log(tmp_path, readonly=True, beside=log) as reader:
        log.commit(batch(1, 10, labelled=True))
        assert (reader.next_offset(), reader.last_seq()) == (11, 10)
        assert vars(reader.counters()) == vars(log.counters())
        with pytest.raises(StorageError):
            log.commit(batch(5, 1))
        log.erase(labels=True)
        with open_log(tmp_path, readonly=True) as another:
            assert vars(another.counters()) == vars(log.counters()) == vars(reader.counters())
        log.commit(batch(11, 1, labelled=True))
        assert len(reader.training_window(0, 100)) + len(reader.holdout_window(100)) == 1
