"""What a step of the portable engine leaves, and which batches it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from edged.domain.protocols import LearningRate
from edged.engines import open_engine
from edged.errors import TrainingError
from tests.engines.bundles import batches, classifier

RATE = LearningRate(0.02, warmup=7, total=60)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd_momentum"])
def test_a_moment_without_gradients_ends_at_0_and_not_at_subnormal_numbers(
    tmp_path: Path, optimizer: str
) -> None:
    made = batches(1000, 2)
    for x, _ in made[1:]:
        x[:, 0] = 0  # of an input that is 0, weights have no gradient
    engine = open_engine("portable", classifier(tmp_path / "b", optimizer=optimizer))
    engine.begin(RATE)
    for x, y in made:
        engine.step(x, y)
    engine.save(tmp_path)
    kept = load((tmp_path / "state.safetensors").read_bytes())
    moment = kept["first/layer1.weight" if optimizer == "adamw" else "momentum/layer1.weight"]
    assert not moment[:, 0].any()
    assert moment[:, 1:].any()


def test_a_batch_that_does_not_fit_is_one_clear_line(tmp_path: Path) -> None:
    engine = open_engine("portable", classifier(tmp_path / "b"))
    good = batches(3, 8)
    x, y = good[0]
    wrong: list[tuple[Any, Any]] = [
        (x[:, :4], y), (x.astype(np.float64), y), (x, y.astype(np.int32)), (x[:0], y[:0]),
    ]  # fmt: skip
    wrong.append((x, np.full_like(y, 9)))
    for x, y in wrong:
        with pytest.raises(TrainingError, match="refuses a batch"):
            engine.step(x, y)
    assert all(engine.step(x, y).applied for x, y in good)
