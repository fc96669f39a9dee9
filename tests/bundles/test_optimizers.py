"""Which optimizers there are, what they take, and which engine a bundle with them is for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edged.bundles.build import build
from edged.bundles.graph.optimizers import Optimizer
from edged.bundles.graph.templates import mlp
from edged.config import loader
from edged.config.training import OptimizerConfig
from edged.device.startup.bootstrap import with_bundle
from edged.domain.training.optimizers import DEFAULTS, OPTIMIZERS, OPTIONS
from edged.engines.portable.description import Description
from edged.errors import BundleError, ConfigError
from edged.storage.models.bundles import Bundle
from tests.commands import edged, write_config
from tests.installed import ENGINES


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_defaults_stay_where_nothing_is_said(name: str) -> None:
    assert Optimizer.of(name) == Optimizer.of(name, weight_decay=None, momentum=None, beta1=None)
    assert Optimizer.of(name, clip_norm=2).clip_norm == 2


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("lion", {}, "there is no optimizer 'lion'"),
        ("adamw", {"momentum": 0.9}, "adamw has no momentum"),
        ("sgd", {"momentum": 0.9}, "sgd has no momentum"),
        ("sgd_momentum", {"epsilon": 1e-8}, "sgd_momentum has no epsilon"),
        ("adamw_pytorch", {"bias_correction": 0}, "adamw_pytorch has no bias_correction"),
        ("sgd", {"nesterov": 1}, "sgd has no nesterov"),
        ("sgd_momentum", {"nesterov": 1, "dampening": 0.5}, "needs a momentum, and no dampening"),
        ("sgd_momentum", {"nesterov": 1, "momentum": 0}, "needs a momentum, and no dampening"),
        ("sgd_momentum", {"dampening": 1.0}, "dampening 1.0 is out of range"),
        ("adamw", {"beta1": 1.0}, "beta1 1.0 is out of range"),
        ("adamw", {"beta2": 0.0}, "beta2 0.0 is out of range"),
        ("adamw", {"epsilon": 0.0}, "epsilon 0.0 is out of range"),
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
def test_what_native_lacks_makes_the_bundle_portable_only(
    tmp_path: Path, optimizer: Optimizer, lack: str
) -> None:
    notes: list[str] = []
    bundle = build(mlp(4, 2), tmp_path / "b", loss="mse", optimizer=optimizer, add_note=notes.append)
    assert bundle.engines == ("portable",)
    for note in notes:
        assert note.startswith("for the portable engine alone: ")
        assert f"the native engine has no {lack}" in note
    assert len(notes) == len(ENGINES) - 1
    with pytest.raises(BundleError, match=lack):
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
        ({"name": "sgd", "beta1": 0.5}, "sgd has no beta1"),
        ({"momentum": 0.5}, "adamw has no momentum"),
        ({"name": "sgd_momentum", "epsilon": 1e-8}, "sgd_momentum has no epsilon"),
    ],
)
def test_a_configuration_with_an_option_of_another_optimizer_is_refused(
    section: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        OptimizerConfig(**section)


def test_a_configured_optimizer_is_what_the_standard_network_is_built_with(tmp_path: Path) -> None:
    stream = {"features": 4, "task": "classify", "classes": 2}
    optimizer = {"name": "sgd_momentum", "momentum": 0.7, "nesterov": True, "clip_norm": 2.0}
    config = loader.load(write_config(tmp_path, stream, model={"optimizer": optimizer, "hidden": [4]}))
    built = Bundle.open(with_bundle(config).storage.dir / "bundle")
    assert built.optimizer == "sgd_momentum"
    told = Description.of(built).optimizer
    assert (told.momentum, told.nesterov, told.clip_norm, told.weight_decay) == (0.7, True, 2.0, 0.0)
