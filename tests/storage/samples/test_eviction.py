from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.clock import VirtualClock
from edged.domain.stream.sample import LabelUpdate, Rejected
from edged.storage.files.database import file_bytes
from tests.storage.stream import START, batch, open_log

if TYPE_CHECKING:
    from edged.storage.samples.log import SampleLog

MIB = 1024**2


def fill(log: SampleLog, rows: int, *, at_once: int = 500, width: int = 3, ids: bool = False) -> int:
    """Commit and give back the largest size on the way."""
    largest = 0
    first = log.next_offset()
    for start in range(first, first + rows, at_once):
        log.commit(batch(start, at_once, labelled=True, ids=ids, packets=True, width=width))
        largest = max(largest, log.counters().bytes)
    return largest


@pytest.mark.parametrize(("at_once", "ids"), [(500, False), (100, True), (37, False)])
def test_the_file_stays_within_its_cap_under_continuous_load(tmp_path: Path, at_once: int, ids: bool) -> None:
    with open_log(tmp_path, max_bytes=MIB) as log:
        largest = fill(log, 60 * at_once if at_once < 500 else 60_000, at_once=at_once, ids=ids)
        assert largest <= 1.1 * MIB
        counters = log.counters()
        assert counters.rows + counters.evicted == counters.samples
        assert counters.rows > 3000 or counters.evicted == 0


def test_the_cap_holds_while_someone_reads_windows(tmp_path: Path) -> None:
    open_log(tmp_path, max_bytes=2 * MIB).close()
    read = (
        "import sys; from pathlib import Path; from tests.storage.stream import open_log\n"
        "with open_log(Path(sys.argv[1]), readonly=True) as log:\n"
        "    print('reading', flush=True)\n"
        "    while not log.labelled_since(30_000):\n"
        "        log.training_window(0, 5000)\n"
        "        print('read', flush=True)\n"
    )
    with (
        open_log(tmp_path, max_bytes=2 * MIB) as log,
        subprocess.Popen([sys.executable, "-c", read, str(tmp_path)], stdout=subprocess.PIPE) as reader,
    ):
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reading\n"
        for _ in range(80):
            assert fill(log, 500) <= 1.1 * 2 * MIB
            os.read(reader.stdout.fileno(), 65_536)  # it has read another window, or the end
        assert reader.wait(60) == 0


def test_the_oldest_go_first_and_are_counted_exactly(tmp_path: Path) -> None:
    with open_log(tmp_path, max_bytes=MIB, holdout=0.2) as log:
        fill(log, 30_000)
        counters = log.counters()
        kept = np.arange(30_001 - counters.rows, 30_001)
        assert counters.evicted == 30_000 - counters.rows > 0
        assert log.rows(np.arange(30_001)).offsets.tolist() == kept.tolist()
        assert counters.holdout_labels == len(log.holdout_window(30_000))
        assert (counters.samples, counters.labels, counters.last_seq) == (30_000, 30_000, 30_000)
        assert log.next_offset() == 30_001


def test_the_replay_memory_is_kept(tmp_path: Path) -> None:
    with open_log(tmp_path, max_bytes=MIB) as log:
        fill(log, 1000)
        log.protect(np.arange(10, 1000, 10))
        log.protect(range(20, 1000, 20))
        fill(log, 30_000)
        kept = log.rows(np.arange(1, 1001)).offsets.tolist()
        assert kept == list(range(20, 1000, 20))
        log.protect([40])
        fill(log, 500)
        assert log.rows(np.arange(1, 1001)).offsets.tolist() == [40]


def test_the_replay_memory_gives_way_when_nothing_else_is_left(tmp_path: Path) -> None:
    with open_log(tmp_path, max_bytes=MIB) as log:
        fill(log, 5000)
        log.protect(range(1, 5001))
        assert fill(log, 20_000) <= 1.1 * MIB
        counters = log.counters()
        assert counters.rows + counters.evicted == counters.samples == 25_000
        assert log.rows([24_999, 25_000]).offsets.tolist() == [24_999, 25_000]


def test_labels_of_evicted_samples_are_orphaned(tmp_path: Path) -> None:
    with open_log(tmp_path, max_bytes=MIB) as log:
        fill(log, 20_000)
        log.commit(labels=[LabelUpdate(1, 1.0, START)])
        assert log.counters().orphaned == 1


def test_an_offset_is_not_given_again_when_its_sample_is_gone(tmp_path: Path) -> None:
    with open_log(tmp_path, max_age=10.0) as log:
        log.commit(batch(1, 5))
        assert log.evict(START + 1000) == 5
        assert log.counters().rows == 0
    with open_log(tmp_path) as log:
        assert log.next_offset() == 6


def test_samples_go_when_they_are_too_old(tmp_path: Path) -> None:
    with open_log(tmp_path, max_age=100.0) as log:
        log.commit(batch(1, 50, labelled=True))
        log.protect([3])
        assert log.evict(START + 100) == 0
        assert log.evict(START + 120.2) == 19
        assert log.rows(range(1, 51)).offsets.tolist() == [3, *range(21, 51)]
        assert log.evict(START + 120.2) == 0
        assert log.counters().evicted == 19


def test_old_samples_go_with_the_commits_of_new_ones(tmp_path: Path) -> None:
    with open_log(tmp_path, max_age=1000.0) as log:
        fill(log, 10_000)
        assert log.rows(range(1, 10_001)).offsets.tolist() == list(range(9000, 10_001))
        log.commit(batch(200_000, 1))
        assert log.counters().rows == 1001 + 1 - 500


def test_eviction_works_in_slices(tmp_path: Path) -> None:
    with open_log(tmp_path, max_age=2000.0) as log:
        fill(log, 1000)
        steps = [log.evict(START + 5000, limit=300) for _ in range(5)]
        assert steps == [300, 300, 300, 100, 0]


def test_a_lowered_cap_shrinks_the_file(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        fill(log, 60_000)
    with open_log(tmp_path, max_bytes=2 * MIB) as log:
        assert file_bytes(tmp_path / "samples.db") > 3 * MIB
        for _ in range(100):
            if log.evict(START) == 0:
                break
        fill(log, 5000)
        for _ in range(100):
            log.evict(START)
        assert log.counters().bytes <= 1.1 * 2 * MIB
        assert log.counters().rows > 10_000


def test_a_flood_of_refused_messages_stays_within_the_cap(tmp_path: Path) -> None:
    flood = [Rejected(START, "s", "too_big", b"x" * 100_000, "", (1, n)) for n in range(500)]
    with open_log(tmp_path, max_bytes=MIB) as log:
        fill(log, 10_000)
        for _ in range(20):
            log.commit(quarantined=flood)
        assert log.counters().bytes <= 1.1 * MIB
        assert log.counters().quarantined == 10_000
        assert 0 < len(log.quarantine(1000)) < 100
        assert log.counters().rows > 1000


def test_setting_the_clock_forwards_evicts_nothing(tmp_path: Path) -> None:
    clock = VirtualClock(START)
    with open_log(tmp_path, max_age=3600.0, clock=clock) as log:
        log.commit(batch(1, 500))
        clock.advance_to(START + 600.0)
        clock.step(10 * 365 * 86400.0)
        assert log.evict(clock.now()) == 0
        later = batch(501, 10)
        log.commit(replace(later, ingested=np.full(10, clock.now())))
        assert log.counters().rows == 510
        clock.advance_to(clock.now() + 3550.0)  # the first 500 are an hour old now, though stamped otherwise
        while log.evict(clock.now()):
            pass
        assert log.counters().rows == 10
        clock.advance_to(clock.now() + 600.0)
        log.evict(clock.now())
        assert log.counters().rows == 0
