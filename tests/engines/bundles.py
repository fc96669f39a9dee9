"""Small bundles and data for engine tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from tests.building import build

if TYPE_CHECKING:
    from edged.domain.protocols import Engine, LearningRate
    from edged.storage.models.bundles import Bundle


def classifier(
    path: Path, *, optimizer: str = "adamw", standardise: bool = True, engine: str = "portable"
) -> Bundle:
    """5 features, 3 classes, neutral input statistics."""
    return build(
        mlp(5, 3, (16,)), path, loss="cross_entropy", optimizer=optimizer, engine=engine,
        standardise=Statistics.identity(5) if standardise else False,
    )  # fmt: skip


def batches(n: int, rows: int = 32, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """`n` batches of a task that can be learned: the class is where a weighted sum lies."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        x = rng.standard_normal((rows, 5)).astype(np.float32)
        made.append((x, np.digitize(x @ [1, -1, 0.5, 0, 0], [-0.5, 0.5]).astype(np.int64)))
    return made


def overflowing(engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """A batch whose loss is finite while the gradients of the first layer overflow."""
    parameters = engine.parameters()
    engine.set_parameters(
        {
            "layer1.weight": np.full_like(parameters["layer1.weight"], 1e-30),
            "layer2.weight": np.array([[3e38], [-3e38], [0]], np.float32).repeat(16, 1) * np.float32(0.1),
        }
    )
    x, y = batches(1)[0]
    return np.abs(x) * np.float32(1e8), y


def halfway(engine: Engine, rate: LearningRate, saved: Path) -> Engine:
    """Ten steps, saved; and the same engine after ten more."""
    engine.begin(rate)
    engine.set_parameters({"input.mean": np.full(5, 0.1, np.float32)})
    for batch in batches(20)[:10]:
        engine.step(*batch)
    saved.mkdir()
    engine.save(saved)
    for batch in batches(20)[10:]:
        engine.step(*batch)
    return engine
