"""Which optimizers there are, what they take, and which engine a bundle with them is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from edged.artifacts.build import build
from edged.artifacts.optimizers import OPTIMIZERS, Optimizer
from edged.artifacts.templates import mlp
from edged.errors import BundleError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path


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
    bundle = build(mlp(4, 2), tmp_path / "b", loss="mse", optimizer=optimizer, note=notes.append)
    assert bundle.engines == ("portable",)
    assert notes[0].startswith("for the portable engine alone: ")
    assert f"the native engine has no {lack}" in notes[0]
    with pytest.raises(BundleError, match=lack):
        build(mlp(4, 2), tmp_path / "n", loss="mse", optimizer=optimizer, engine="native")
