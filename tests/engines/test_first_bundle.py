"""A bundle as the first version with a portable engine wrote it: `first_bundle/`, an MLP 5-4-3 with AdamW."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.domain.protocols import LearningRate
from edged.engines.portable import PortableEngine
from edged.storage.bundles import Bundle

LOSSES = [1.26638, 1.285664, 1.04615, 1.115917, 1.037392]


def test_it_still_trains_as_it_did(tmp_path: Path) -> None:
    engine = PortableEngine(Bundle.open(Path(__file__).parent / "first_bundle"))
    engine.begin(LearningRate(0.05))
    rng = np.random.default_rng(0)
    for loss in LOSSES:
        x, y = rng.standard_normal((8, 5)).astype(np.float32), rng.integers(0, 3, 8)
        assert engine.evaluate(x, y) == pytest.approx(loss, abs=1e-5)
        assert engine.step(x, y).loss == pytest.approx(loss, abs=1e-5)
    engine.step(x, y, apply=False)
    assert engine.step(x, y).applied
    engine.save(tmp_path)
    resumed = PortableEngine(Bundle.open(Path(__file__).parent / "first_bundle"))
    resumed.restore(tmp_path)
    assert resumed.step(x, y) == engine.step(x, y)
