"""What the sample log hands to the disk: flash wears by the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.domain.stream.schema import Schema
from edged.host.vitals import written_bytes
from edged.storage.samples.log import SampleLog
from tests.device.linear import samples

WIDTH, PAYLOAD = 16, 241  # a JSON object of 16 named numbers and a time
TOGETHER = 500  # five seconds of 100 samples each


def written(path: Path, rows: int, together: int) -> int:
    """Bytes written for so many samples, the folding of the write-ahead log included."""
    before = written_bytes()
    assert before is not None
    x = np.random.default_rng(0).normal(size=(together, WIDTH)).astype(np.float32)
    with SampleLog.open(path, Schema((), WIDTH, "classify", ("no", "yes"))) as log:
        for first in range(1, rows + 1, together):
            log.commit(samples(first, x))
    after = written_bytes()
    assert after is not None
    return after - before


def test_samples_that_are_committed_together_cost_little_more_than_themselves(tmp_path: Path) -> None:
    if written(tmp_path / "probe.db", TOGETHER, TOGETHER) == 0:
        pytest.skip("nothing is ever written to a disk here")
    rows = 20 * TOGETHER
    assert written(tmp_path / "many.db", rows, TOGETHER) < 1.5 * PAYLOAD * rows
    assert written(tmp_path / "few.db", 200, 1) > 20 * PAYLOAD * 200, "each in a commit of its own"
