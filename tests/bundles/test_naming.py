"""Names and units in bundles: given at the build, shown, and compared with a device's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edged.bundles.graph.naming import Naming
from edged.bundles.graph.templates import cnn1d, mlp
from edged.config.loader import load
from edged.errors import BundleError, ConfigError
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.commands import edged, write_config

PRESS: dict[str, Any] = {"features": ["temp", "vib.x", "vib.y"], "classes": ["ok", "worn"]}
NAMING = Naming(("temp", "vib.x", "vib.y"), ("°C", "g", "g"), ("ok", "worn"))


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("named")
    return build(mlp(3, 2, [4]), folder / "b", loss="cross_entropy", engine="portable", naming=NAMING)


def check(bundle: Bundle, folder: Path, **stream: Any) -> None:
    bundle.check_schema(load(write_config(folder, stream), {}).stream.to_schema())


def test_they_are_read_back_with_the_versions_of_what_built_it(named: Bundle) -> None:
    read = Bundle.open(named.path)
    assert (read.input.names, read.input.units, read.output.names) == (
        NAMING.features, NAMING.units, NAMING.classes,
    )  # fmt: skip
    assert set(read.made_with) == {"python", "numpy", "onnx", "onnxruntime"}
    assert all(read.made_with.values())


@pytest.mark.parametrize(
    "stream",
    [
        PRESS,
        PRESS | {"units": ["°C", "g", "g"]},
        {"features": 3, "classes": 2},
        {"features": 3, "classes": ["ok", "worn"]},
    ],
    ids=["names", "units", "numbers", "labels"],
)
def test_a_device_that_names_the_same_or_nothing_takes_it(
    named: Bundle, tmp_path: Path, stream: dict[str, Any]
) -> None:
    check(named, tmp_path, **stream)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"features": ["temp", "vib.y", "vib.x"]}, "has 'vib.x' as input 2, stream.features has 'vib.y'"),
        ({"classes": ["worn", "ok"]}, "has 'ok' as class 1, stream.classes has 'worn'"),
        ({"units": ["°F", "g", "g"]}, "has '°C' as unit 1, stream.units has '°F'"),
    ],
)
def test_a_device_that_names_something_else_refuses_it(
    named: Bundle, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BundleError) as refused:
        check(named, tmp_path, **PRESS | changes)
    assert problem in refused.value.line()


def test_target_units_are_compared_too(tmp_path: Path) -> None:
    bundle = build(
        mlp(3, 1, [4]), tmp_path / "b", loss="mse", engine="portable", naming=Naming(target_units=("h",))
    )
    check(bundle, tmp_path, features=3, target_units=["h"])
    with pytest.raises(BundleError, match=r"has 'h' as target's unit 1, stream\.target_units has 'd'"):
        check(bundle, tmp_path, features=3, target_units=["d"])


def test_of_windows_the_channels_are_named(tmp_path: Path) -> None:
    naming = Naming(features=("ax", "ay"))
    bundle = build(
        cnn1d((8, 2), 3, [4]), tmp_path / "b", loss="cross_entropy", engine="portable", naming=naming
    )
    stream = {"classes": 3, "window": {"size": 8, "stride": 4, "rate": 50}}
    check(bundle, tmp_path, features=["ax", "ay"], **stream)
    with pytest.raises(BundleError, match="as input 1"):
        check(bundle, tmp_path, features=["ay", "ax"], **stream)


@pytest.mark.parametrize(
    ("naming", "problem"),
    [
        (Naming(features=("a", "b")), "2 names (a, b), the model has 3 inputs"),
        (Naming(units=("a", "b")), "--units, or --config: 2 names"),
        (Naming(("a", "b", "c"), units=("g",)), "1 names (g), the model has 3 named inputs"),
        (Naming(classes=("a", "b", "c")), "3 names (a, b, c), the model has 2 classes"),
        (Naming(target_units=("a",)), "1 names (a), the model has 2 outputs"),
        (Naming(features=("a", "a", "b")), "a name comes twice"),
    ],
)
def test_names_in_the_wrong_number_are_refused(tmp_path: Path, naming: Naming, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(mlp(3, 2, [4]), tmp_path / "b", loss="cross_entropy", engine="portable", naming=naming)
    assert problem in refused.value.line()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        ({"features": 3, "units": ["g"], "classes": 2}, "name one for each"),
        ({"features": 3, "classes": 2, "target_units": ["h"]}, "target_units are for task regress"),
    ],
)
def test_units_in_a_configuration_are_one_for_each(
    tmp_path: Path, stream: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(write_config(tmp_path, stream), {})


@pytest.mark.slow
def test_the_command_takes_them_from_a_configuration_or_as_they_are_given(tmp_path: Path) -> None:
    """Also from one whose bundle and password are on the device only."""
    config = write_config(
        tmp_path,
        PRESS | {"units": ["°C", "g", "g"]},
        model={"bundle": "none"},
        mqtt={"password_file": "none"},
    )
    (tmp_path / "m.onnx").write_bytes(mlp(3, 2, [4]).SerializeToString())
    made = edged(
        "artifacts", "build", tmp_path / "m.onnx", "-o", tmp_path / "b", "--loss", "cross_entropy", "--json",
        "--config", config, "--units", "K, g, g", "--engine", "portable",
    )  # fmt: skip
    assert made.code == 0, made.err
    assert (made.json["input"]["names"], made.json["input"]["units"]) == (PRESS["features"], ["K", "g", "g"])
    assert made.json["output"]["names"] == PRESS["classes"]
