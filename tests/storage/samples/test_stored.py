"""Single samples are read with the label that counts now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.domain.stream.sample import LabelUpdate
from edged.storage.samples.log import SampleLog
from tests.device.learning_rig import CLASSIFY, batch

if TYPE_CHECKING:
    from pathlib import Path


def test_samples_are_read_as_they_are_now(tmp_path: Path) -> None:
    with SampleLog.open(tmp_path / "samples.db", CLASSIFY, holdout=0.5) as log:
        x = np.arange(20, dtype=np.float32).reshape(4, 5)
        log.commit(batch(log, x, [2.0, None, 0.0, 1.0]))
        found = log.stored([4, 1, 2, 99])
        assert [(one.offset, one.key, one.label) for one in found] == [
            (1, "m", 2), (2, "m", None), (4, "m", 1),
        ]  # fmt: skip
        assert np.array_equal(np.stack([one.x for one in found]), x[[0, 1, 3]])
        assert found[0].ts == 1.7e9 + 1
        log.commit(None, [LabelUpdate(2, 1.0, 0.0), LabelUpdate(4, 0.0, 1.0)])
        assert [one.label for one in log.stored([2, 4])] == [1, 0]
        log.erase(labels=True)
        assert [one.label for one in log.stored([1, 2, 3, 4])] == [None] * 4
        assert log.stored([]) == log.stored([7]) == []
