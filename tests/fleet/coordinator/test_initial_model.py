"""The model that a fleet begins with: a bundle or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from edged.bundles.graph.templates import mlp
from edged.engines.model_parameters import initial_parameters
from edged.errors import ConfigError, CorruptError
from edged.fleet.config import CoordinatorConfig
from edged.fleet.coordinator.models import first_model
from tests.building import build
from tests.fleet.senders import base_weights


def config(model: Path, **sections: Any) -> CoordinatorConfig:
    return CoordinatorConfig(fleet="plant", model=model, **sections)


def test_a_bundle_gives_its_weights_and_its_name(tmp_path: Path) -> None:
    bundle = build(mlp(4, 3, hidden=(8,)), tmp_path / "bundle", loss="cross_entropy")
    expected = initial_parameters(bundle)
    weights, name = first_model(config(bundle.path))
    assert name == bundle.fingerprint
    assert all(np.array_equal(weights[key], value) for key, value in expected.items())


def test_a_file_gives_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(base_weights(), path)
    weights, name = first_model(config(path, bundle="f00"))
    assert name == "f00"
    assert sorted(weights) == sorted(base_weights())


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no initial model"):
        first_model(config(tmp_path / "nothing"))
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"x")
    with pytest.raises(CorruptError, match="no safetensors"):
        first_model(config(path))
    save_file({"w": np.zeros(3)}, path)
    with pytest.raises(ConfigError, match="not float32"):
        first_model(config(path))
