"""The bundle of a recipe: a network that may be trained already keeps what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edged.bundles.graph.network import UNTRAINED
from edged.bundles.graph.templates import mlp
from edged.engines.inference import InferenceModel
from edged.storage.models.bundles import Bundle
from edged.workbench.experiments.build_bundle import build_bundle
from edged.workbench.experiments.config import RecipeFile
from edged.workbench.experiments.grid import expand
from edged.workbench.experiments.job import TrialOrder, save_data
from edged.workbench.experiments.loading import Split
from edged.workbench.recordings.stream import Stream

ROWS = np.arange(8)


@pytest.mark.parametrize("chosen", [None, True, False])
@pytest.mark.parametrize("producer", ["pytorch", UNTRAINED])
def test_a_recipe_standardises_networks_of_our_own_and_others_if_told(
    tmp_path: Path, producer: str, chosen: bool | None
) -> None:
    x = np.random.default_rng(1).normal(50, 9, (8, 3)).astype(np.float32)
    every = np.ones(8, np.bool_)
    stream = Stream(x, np.zeros((8, 1), np.float32), ROWS.astype(np.float64), [""] * 8, every, every, None)
    save_data(tmp_path, stream, Split(ROWS[:4], ROWS[4:6], ROWS[6:], 0))
    network = mlp(3, 2, [4], seed=1)
    network.producer_name = producer
    (tmp_path / "model.onnx").write_bytes(network.SerializeToString())
    file = RecipeFile.model_validate(
        {"stream": {"features": 3, "classes": 2}, "recipes": [{"model": "model.onnx", "standardise": chosen}]}
    )
    (recipe,) = expand(file, tmp_path)
    order = TrialOrder(
        recipe, file.stream.to_schema(), 0, "portable", 1, "accuracy", tmp_path, tmp_path, tmp_path / "bundle"
    )
    notes = build_bundle(order).notes
    bundle = Bundle.open(order.bundle)
    before, after = (InferenceModel(path).predict(x) for path in (Path(recipe.model), bundle.inference_model))
    kept = producer != UNTRAINED if chosen is None else not chosen
    assert (bundle.standardise is None) == kept
    assert np.allclose(before, after, atol=1e-5) == kept
    assert any("may be trained already" in note for note in notes) == (kept and chosen is None)
