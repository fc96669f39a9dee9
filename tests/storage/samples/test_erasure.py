"""Erasure: not one byte of what was erased is left in any file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.stream.sample import Batch, LabelUpdate, Rejected
from edged.errors import StorageError
from edged.storage.files import database
from edged.storage.samples import log as sample_log
from tests.storage.stream import REGRESS_TWO, START, open_log

if TYPE_CHECKING:
    from edged.storage.samples.log import SampleLog

N = 1000
WIDTH = REGRESS_TWO.width


class Marked:
    """Samples whose inputs, labels, ids and refused payloads are random bytes that can be looked for."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(N, WIDTH)).astype(np.float32)
        self.y = rng.normal(size=(N, 2)).astype(np.float32)
        self.ids = [f"id-{number:016x}" for number in rng.integers(0, 2**62, N)]
        self.refused = rng.bytes(3000)

    def store(self, log: SampleLog, first: int = 1, ts: float = START) -> None:
        """Into the log, a batch at a time, labels and a refused message afterwards."""
        for start in range(0, N, 500):
            part = slice(start, start + 500)
            offsets = np.arange(first + start, first + start + 500, dtype=np.int64)
            times = np.full(500, ts)
            log.commit(
                Batch(offsets, ["k"] * 500, times, times, self.x[part], [None] * 500, list(self.ids[part]))
            )
            labels = [tuple(row) for row in self.y[part].tolist()]
            log.commit(
                None, [LabelUpdate(int(o), label, ts) for o, label in zip(offsets, labels, strict=True)]
            )
        log.commit(None, [], [Rejected(ts, "t", "not_json", self.refused, "no")])

    @property
    def samples(self) -> list[bytes]:
        """What only the samples hold."""
        return [*(row.tobytes() for row in self.x), *(name.encode() for name in self.ids), self.refused]

    @property
    def labels(self) -> list[bytes]:
        """What only the labels hold."""
        return [row.tobytes() for row in self.y]


def leaks(content: bytes, needles: list[bytes]) -> int:
    """How many of the needles are in it, by their first bytes: a value may run over into another page."""
    return sum(needle[:8] in content for needle in needles)


def files(folder: Path) -> bytes:
    """Everything that lies in a directory."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[SampleLog]:
    log = open_log(tmp_path, REGRESS_TWO)
    yield log
    log.close()


def test_the_needles_are_found_where_nothing_is_erased(tmp_path: Path, opened: SampleLog) -> None:
    """Else the other tests could not fail. Eviction leaves bytes behind unless asked not to."""
    marked = Marked()
    marked.store(opened)
    held = files(tmp_path)
    assert leaks(held, marked.samples) > 0.99 * len(marked.samples)
    assert leaks(held, marked.labels) > 0.99 * N


def test_erased_samples_are_in_no_file(tmp_path: Path, opened: SampleLog) -> None:
    marked = Marked()
    marked.store(opened)
    opened.protect(range(1, 100))
    gone = opened.erase(samples=True)
    assert gone == {"samples": N, "labels": N, "quarantined": 1}
    assert leaks(files(tmp_path), marked.samples + marked.labels) == 0
    assert opened.quarantine(10) == []


def test_what_had_been_evicted_before_is_erased_too(tmp_path: Path, opened: SampleLog) -> None:
    old, new = Marked(1), Marked(2)
    old.store(opened)
    opened.close()
    with open_log(tmp_path, REGRESS_TWO, max_age=10.0) as log:
        new.store(log, N + 1, START + 1000)
        assert log.evict(START + 1000) == 0
        assert log.counters().evicted == N
        log.erase(samples=True)
        assert leaks(files(tmp_path), old.samples + old.labels + new.samples + new.labels) == 0


def test_pages_that_were_freed_without_care_go(tmp_path: Path, opened: SampleLog) -> None:
    """Some builds of SQLite overwrite what they delete, others do not."""
    secret = os.urandom(400_000)
    with closing(sqlite3.connect(tmp_path / "samples.db", isolation_level=None)) as db:
        for statement in ("PRAGMA secure_delete = OFF", "CREATE TABLE old (x BLOB)"):
            db.execute(statement)
        db.execute("INSERT INTO old VALUES (?)", (secret,))
        db.execute("DROP TABLE old")
    needles = [secret[place : place + 16] for place in range(0, len(secret), 1000)]
    assert leaks(files(tmp_path), needles) > 300
    opened.erase(samples=True)
    assert leaks(files(tmp_path), needles) == 0


def test_labels_alone_are_erased_and_the_samples_stay(tmp_path: Path, opened: SampleLog) -> None:
    marked = Marked()
    marked.store(opened)
    assert opened.erase(labels=True) == {"samples": 0, "labels": N, "quarantined": 1}
    held = files(tmp_path)
    assert leaks(held, [*marked.labels, marked.refused]) == 0
    assert leaks(held, [row.tobytes() for row in marked.x]) > 0.99 * N
    assert len(opened.training_window(0, N)) == len(opened.holdout_window(N)) == 0
    assert opened.counters().holdout_labels == 0


def test_offsets_and_label_order_go_on_and_the_counts_stay_exact(tmp_path: Path, opened: SampleLog) -> None:
    marked = Marked()
    marked.store(opened)
    opened.erase(samples=True)
    counters = opened.counters()
    assert (counters.samples, counters.rows, counters.evicted) == (N, 0, N)
    assert (counters.labels, counters.last_seq, counters.quarantined) == (0, N, 0), (
        "of what was erased nothing is counted as there"
    )
    assert opened.next_offset() == N + 1
    marked.store(opened, N + 1)
    assert opened.counters().last_seq == 2 * N
    assert len(opened.training_window(N, 2 * N)) + len(opened.holdout_window(2 * N)) == N


def test_the_log_works_on_beside_a_reader_that_was_open_before(tmp_path: Path, opened: SampleLog) -> None:
    """As in a running daemon."""
    marked = Marked()
    marked.store(opened)
    with open_log(tmp_path, REGRESS_TWO, readonly=True) as reader:
        assert reader.counters().rows == N
        opened.erase(samples=True)
        assert leaks(files(tmp_path), marked.samples + marked.labels) == 0
        assert reader.counters().rows == 0
        marked.store(opened, N + 1)
        assert reader.counters().rows == N


def test_a_reader_in_the_middle_of_a_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.05)
    marked = Marked()
    with open_log(tmp_path, REGRESS_TWO) as log:
        marked.store(log)
        with closing(sqlite3.connect(tmp_path / "samples.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM samples").fetchone()[0] == N
            with pytest.raises(StorageError, match="still being read"):
                log.erase(samples=True)
        log.erase(samples=True)
        assert leaks(files(tmp_path), marked.samples + marked.labels) == 0


# ---- retention by age ----------------------------------------------------------------------------


def aged(folder: Path, **options: Any) -> tuple[Marked, SampleLog]:
    """A log whose first samples, some of them in the replay memory, are past their age."""
    marked = Marked(1)
    log = open_log(folder, REGRESS_TWO, max_age=10.0, **options)
    marked.store(log)
    log.protect(range(1, 50))
    fresh = Batch(
        np.arange(N + 1, N + 2, dtype=np.int64), ["k"], np.full(1, START + 100), np.full(1, START + 100),
        np.zeros((1, WIDTH), np.float32), [None],
    )  # fmt: skip
    log.commit(fresh)
    while log.evict(START + 100):
        pass
    return marked, log


def test_with_secure_nothing_outlives_its_age(tmp_path: Path) -> None:
    marked, log = aged(tmp_path, secure=True)
    assert (log.counters().rows, log.quarantine(9)) == (1, [])
    log.close()
    assert leaks(files(tmp_path), marked.samples + marked.labels) == 0


def test_without_it_the_replay_memory_outlives_its_age(tmp_path: Path) -> None:
    _, log = aged(tmp_path)
    assert (log.counters().rows, log.quarantine(9)) == (50, [])
    log.close()


def test_the_log_of_changes_is_cut_off_while_the_daemon_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_log, "CLEAN_SECONDS", 0.0)
    marked, log = aged(tmp_path, secure=True)
    log.evict(START + 100)
    assert leaks(files(tmp_path), marked.samples + marked.labels) == 0
    log.close()
