"""Bundles as earlier versions wrote them, small MLPs with AdamW: today's engine trains them as theirs did.

`first_bundle` is from the first version with a portable engine. In `joined_bundle` and `single_bundle`, the
last ones of format 1, parameters are read besides the state; in the second the only trainable one is the
state itself. In `channel_bundle`, of format 2, every state tensor is one channel.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.domain.protocols import LearningRate
from edged.engines.portable.engine import PortableEngine
from edged.storage.models.bundles import Bundle

HERE = Path(__file__).parent
LOSSES = [1.26638, 1.285664, 1.04615, 1.115917, 1.037392]


def test_the_first_one_still_trains_as_it_did(tmp_path: Path) -> None:
    engine = PortableEngine(Bundle.open(HERE / "first_bundle"))
    engine.begin(LearningRate(0.05))
    rng = np.random.default_rng(0)
    for loss in LOSSES:
        x, y = rng.standard_normal((8, 5)).astype(np.float32), rng.integers(0, 3, 8)
        assert engine.evaluate(x, y) == pytest.approx(loss, abs=1e-5)
        assert engine.step(x, y).loss == pytest.approx(loss, abs=1e-5)
    engine.step(x, y, apply=False)
    assert engine.step(x, y).applied
    engine.save(tmp_path)
    resumed = PortableEngine(Bundle.open(HERE / "first_bundle"))
    resumed.restore(tmp_path)
    assert resumed.step(x, y) == engine.step(x, y)


@pytest.mark.parametrize(
    ("name", "losses"),
    [
        ("joined_bundle", [1.069187, 1.184425, 1.221315, 1.057705, 1.123336]),
        ("channel_bundle", [1.069187, 1.184425, 1.221315, 1.057705, 1.123336]),
        ("single_bundle", [1.245032, 1.189307, 1.040293, 1.053369, 1.093991]),
    ],
)
def test_the_last_ones_of_formats_1_and_2_still_train_as_they_did(
    name: str, losses: list[float], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    data = [(rng.standard_normal((8, 5)).astype(np.float32), rng.integers(0, 3, 8)) for _ in range(20)]
    alone = PortableEngine(Bundle.open(HERE / name))
    alone.begin(LearningRate(0.05))
    assert [alone.step(x, y).loss for x, y in data][-5:] == pytest.approx(losses, abs=1e-5)
    alone.step(*data[0])
    alone.save(tmp_path)
    resumed = PortableEngine(Bundle.open(HERE / name))
    resumed.restore(tmp_path)
    assert resumed.step(*data[1]) == alone.step(*data[1])
