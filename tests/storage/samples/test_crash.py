"""What a crash or a full disk leaves: everything reported as committed, and nothing by halves."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.storage.stream import inputs, open_log

ROOT = Path(__file__).parents[3]

# Says after each commit which offset came last; each batch holds labels for the one before it, too.
WRITER = """
import resource, signal, sys
from pathlib import Path
from edged.domain.stream.sample import LabelUpdate
from edged.errors import StorageError
from tests.storage.stream import START, batch, open_log

if len(sys.argv) > 3:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
log = open_log(Path(sys.argv[1]), holdout=0.0, max_bytes=int(sys.argv[2]))
first, size = log.next_offset(), 20
while True:
    labels = [LabelUpdate(offset, 1.0, START) for offset in range(max(1, first - size), first)]
    try:
        log.commit(batch(first, size, ids=True, packets=True), labels)
    except StorageError as problem:
        print("failed", problem, flush=True)
        break
    print(first + size - 1, flush=True)
    first += size
"""


def writer(directory: Path, *options: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory), *map(str, options)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def check(directory: Path, reported: int) -> int:
    """Everything reported is there, the counts agree with the rows; the last offset."""
    with open_log(directory, holdout=0.0) as log:
        counters = log.counters()
        last = log.next_offset() - 1
        assert reported <= last == counters.samples
        assert last % 20 == 0
        assert counters.rows + counters.evicted == last
        labelled = max(0, last - 20)
        assert (counters.labels, counters.last_seq, counters.orphaned) == (labelled, labelled, 0)
        kept = np.arange(last - counters.rows + 1, labelled + 1)
        window = log.rows(np.arange(1, last + 1))
        assert window.offsets.tolist() == kept.tolist()
        assert window.x.tobytes() == inputs(kept).tobytes()
        assert len(log.recent_packets(last)) == counters.rows
    return last


def test_everything_committed_survives_kill_9(tmp_path: Path) -> None:
    rng = random.Random(1)
    last = 0
    for _ in range(6):
        with writer(tmp_path, 2**20) as process:
            assert process.stdout is not None
            reported = last
            for _ in range(rng.randrange(1, 250)):
                reported = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            reported = int([str(reported), *process.stdout.read().split("\n")[:-1]][-1])
            assert process.wait() == -signal.SIGKILL
        last = check(tmp_path, reported)


@pytest.mark.parametrize("size", [60_000, 200_000, 500_000])
def test_a_disk_that_is_full_loses_nothing_that_was_committed(tmp_path: Path, size: int) -> None:
    open_log(tmp_path, holdout=0.0).close()
    with writer(tmp_path, 2**30, size) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        assert process.wait() == 0
    assert lines[-1].startswith("failed") and "samples.db" in lines[-1]  # noqa: PT018  one fact
    last = check(tmp_path, max((int(line) for line in lines[:-1]), default=0))
    with writer(tmp_path, 2**30) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == last + 20
        process.kill()
