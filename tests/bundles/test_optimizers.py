"""Which optimizers there are, what they take, and which engine a bundle with them is for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edged.bundles.graph.templates import mlp
from edged.config import loader
from edged.config.training import OptimizerConfig
from edged.device.startup.bootstrap import with_bundle
from edged.domain.training.optimizers import DEFAULTS, OPTIMIZERS, OPTIONS, Optimizer
from edged.engines.portable.description import Description
from edged.errors import BundleError, ConfigError
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.commands import edged, write_config


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_defaults_stay_where_nothing_is_said(name: str) -> None:
    assert Optimizer.of(name) == Optimizer.of(name, weight_decay=None, momentum=None)
    assert Optimizer.of(name, clip_norm=2).clip_norm == 2


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("lion", {}, "there is no optimizer 'lion'"),
        ("adamw", {"momentum": 0.9}, "adamw has no momentum"),
        ("sgd", {"momentum": 0.9}, "sgd has no momentum"),
        ("sgd_momentum", {"momentum": 1.0}, "momentum 1.0 is out of range"),
        ("adamw", {"weight_decay": -0.1}, "weight_decay -0.1 is out of range"),
        ("sgd", {"clip_norm": float("nan")}, "clip_norm nan is out of range"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, options: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Optimizer.of(name, **options)


@pytest.mark.parametrize(
    ("optimizer", "lack"),
    [
        (Optimizer.of("sgd_momentum"), "momentum"),
        (Optimizer.of("sgd", weight_decay=0.1), "SGD with weight decay"),
    ],
)
def test_what_the_native_engine_lacks_is_refused_for_it(
    tmp_path: Path, optimizer: Optimizer, lack: str
) -> None:
    assert build(mlp(4, 2), tmp_path / "b", loss="mse", optimizer=optimizer).engine == "portable"
    with pytest.raises(BundleError, match=f"the native engine has no {lack} .*--engine portable"):
        build(mlp(4, 2), tmp_path / "n", loss="mse", optimizer=optimizer, engine="native")


def test_every_option_reaches_the_build_and_the_configuration(tmp_path: Path) -> None:
    """What the table of optimizers names is on the command line and in `model.optimizer`."""
    flags = edged("artifacts", "build", "--help", COLUMNS="300").out
    page = (Path(__file__).parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")
    for option in OPTIONS:
        assert f"--{option.replace('_', '-')}" in flags, option
        assert option in OptimizerConfig.model_fields, option
        assert f"`{option}`" in page, option


def test_the_page_states_the_defaults() -> None:
    page = (Path(__file__).parents[2] / "docs" / "losses.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", page.split("## Optimizers")[1], re.MULTILINE))
    assert rows.keys() == DEFAULTS.keys()
    for name, options in DEFAULTS.items():
        told = {key: json.loads(value) for key, value in re.findall(r"`(\w+)` ([\w.-]+)", rows[name])}
        assert told == {**options, "clip_norm": 0}, name


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"momentum": 0.5}, "adamw has no momentum"),
        ({"name": "sgd", "momentum": 0.5}, "sgd has no momentum"),
    ],
)
def test_a_configuration_with_an_option_of_another_optimizer_is_refused(
    section: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        OptimizerConfig(**section)


def test_a_configured_optimizer_is_what_the_standard_network_is_built_with(tmp_path: Path) -> None:
    stream = {"features": 4, "task": "classify", "classes": 2}
    optimizer = {"name": "sgd_momentum", "momentum": 0.7, "clip_norm": 2.0}
    config = loader.load(write_config(tmp_path, stream, model={"optimizer": optimizer, "hidden": [4]}))
    built = Bundle.open(with_bundle(config).storage.dir / "bundle")
    assert built.optimizer == "sgd_momentum"
    told = Description.of(built).optimizer
    assert (told.momentum, told.clip_norm, told.weight_decay) == (0.7, 2.0, 0.0)
