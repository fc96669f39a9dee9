"""Whether stored labels confirm an answer that labels contradict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.device.serving import HeadTeacher
from edged.domain.judging.ridge_head import RidgeHead
from edged.storage.samples.log import SampleLog
from tests.device.linear import SCHEMA, classes, inputs, samples

STORED = 400


@pytest.mark.parametrize(
    ("rows", "early", "confirmed"), [(3, False, True), (2, True, False), (12, True, True)]
)  # fmt: skip
def test_an_early_suspicion_needs_more_rows_that_stored_labels_confirm(
    tmp_path: Path, rows: int, early: bool, confirmed: bool
) -> None:
    x = inputs(STORED)
    contradicted = x[x[:, 0] > 1.0][:rows]
    seq = np.full(rows, STORED + 1)
    with SampleLog.open(tmp_path / "samples.db", SCHEMA, holdout=0.0) as log:
        log.commit(samples(1, x, classes(x)))
        teacher = HeadTeacher(RidgeHead.of(SCHEMA), log, SCHEMA, 0.0)
        assert teacher.confirms(1, contradicted, seq, early=early) == confirmed
        assert not teacher.confirms(0, contradicted, seq, early=early), "they are of the other class"


def test_labels_that_are_half_wrong_confirm_nothing(tmp_path: Path) -> None:
    x = inputs(STORED)
    truth = (x[:, 0] > 0).astype(float)
    y = np.where(np.arange(STORED) % 2, truth, 1.0 - truth)
    with SampleLog.open(tmp_path / "samples.db", SCHEMA, holdout=0.0) as log:
        log.commit(samples(1, x, y.tolist()))
        teacher = HeadTeacher(RidgeHead.of(SCHEMA), log, SCHEMA, 0.0)
        far = x[x[:, 0] > 1.0][:20]
        assert not any(teacher.confirms(said, far, np.full(len(far), STORED + 1)) for said in (0, 1))
