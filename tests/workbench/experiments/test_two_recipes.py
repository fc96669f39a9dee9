"""Two recipes that differ in one key train differently."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

from edged.workbench.experiments.config import RecipeFile
from edged.workbench.experiments.grid import expand
from edged.workbench.experiments.job import WEIGHTS, TrialOrder, save_data
from edged.workbench.experiments.loading import Split
from edged.workbench.experiments.trial import Trial
from edged.workbench.recordings.stream import Stream

ROWS = np.arange(96)
FEW: dict[str, Any] = {"hidden": [4], "batch": 8, "epochs": 2, "learning_rate": 0.05}


@cache
def trained(*changes: tuple[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The weights after a training with these keys in its recipe, always from the same seed."""
    folder = Path(mkdtemp(prefix="edged-two-recipes-"))
    rng = np.random.default_rng(3)
    x = rng.normal(size=(96, 3)).astype(np.float32)
    y, every = (x[:, :1] > 0).astype(np.float32), np.ones(96, np.bool_)
    stream = Stream(x, y, ROWS.astype(np.float64), [""] * 96, every, every, None)
    save_data(folder, stream, Split(ROWS[:64], ROWS[64:80], ROWS[80:], 0))
    file = RecipeFile.model_validate(
        {"stream": {"features": 3, "classes": 2}, "recipes": [FEW | dict(changes)]}
    )
    (recipe,) = expand(file, folder)
    schema = file.stream.to_schema()
    order = TrialOrder(recipe, schema, 0, "portable", 1, "accuracy", folder, folder, folder / "bundle")
    Trial(order).run()
    with np.load(folder / WEIGHTS) as weights:
        return {name: weights[name] for name in weights.files}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "key", "value"),
    [
        ("adamw", "schedule", "linear"),
        ("adamw", "warmup", 5),
        ("adamw", "weight_decay", 0.5),
        ("adamw", "clip_norm", 1e-3),
        ("adamw", "beta1", 0.1),
        ("adamw", "beta2", 0.1),
        ("adamw", "epsilon", 1.0),
        ("adamw", "bias_correction", False),
        ("sgd_momentum", "momentum", 0.1),
        ("sgd_momentum", "dampening", 0.5),
        ("sgd_momentum", "nesterov", True),
    ],
)
def test_a_recipe_trains_as_its_key_says(optimizer: str, key: str, value: Any) -> None:
    usual, changed = trained(("optimizer", optimizer)), trained(("optimizer", optimizer), (key, value))
    assert usual.keys() == changed.keys()
    assert any(not np.allclose(usual[name], changed[name], atol=1e-5) for name in usual)
