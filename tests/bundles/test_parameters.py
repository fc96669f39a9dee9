"""Parameters of a bundle, one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.bundles.export import parameters
from edged.bundles.export.parameters import read_parameters, write_parameter
from edged.bundles.graph.templates import mlp
from edged.bundles.inspect import verify
from edged.bundles.source.standardise import Statistics
from edged.engines import open_engine
from edged.engines.native import api as training_api
from edged.engines.native import checkpoint
from edged.errors import BundleError, ConfigError, CorruptError
from edged.storage.models.bundles import Bundle
from tests.building import build
from tests.commands import edged
from tests.installed import needs_native

FORMS: dict[str, dict[str, Any]] = {
    "portable": {},
    "nominal": {"checkpoint": "nominal"},
    "native": {"engine": "native"},
    "native, nominal": {"engine": "native", "checkpoint": "nominal"},
}


def made(folder: Path, form: str) -> Bundle:
    statistics = Statistics.identity(4, 2)
    return build(mlp(4, 2, (3,)), folder / "b", loss="mse", standardise=statistics, **FORMS[form])


@pytest.fixture(params=FORMS)
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Bundle:
    return made(tmp_path, request.param)


@pytest.fixture
def usual(tmp_path: Path) -> Bundle:
    return made(tmp_path, "portable")


def test_the_table_tells_shapes_and_values(bundle: Bundle) -> None:
    rows = {row.name: row for row in parameters.describe(bundle.path).parameters}
    assert rows["layer1.weight"].shape == (3, 4)
    assert rows["layer1.weight"].trainable
    assert not rows["input.mean"].trainable
    assert rows["layer1.bias"].max == 0.0
    weight = parameters.get(bundle.path, "layer1.weight")
    assert rows["layer1.weight"].mean == pytest.approx(weight.mean())


def test_what_is_put_in_is_where_the_engine_begins(bundle: Bundle, tmp_path: Path) -> None:
    before = open_engine(bundle.engine, bundle).parameters()
    write_parameter(bundle.path, "layer1.weight", tmp_path / "w.npy")
    np.save(tmp_path / "other.npy", np.load(tmp_path / "w.npy") + 1)
    parameters.put(bundle.path, read_parameters([f"layer1.weight={tmp_path / 'other.npy'}"]))
    new = Bundle.open(bundle.path)
    assert new.fingerprint != bundle.fingerprint
    after = open_engine(new.engine, new).parameters()
    np.testing.assert_array_equal(after["layer1.weight"], before["layer1.weight"] + 1)
    np.testing.assert_array_equal(after["layer2.weight"], before["layer2.weight"])
    # It is verified that checkpoint and inference model agree.
    assert verify(new.path).ok


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("layer9", np.zeros(3), "no such parameter"),
        ("layer1.bias", np.zeros(4), "has shape"),
        ("layer1.bias", np.full(3, np.nan), "not finite"),
    ],
)
def test_a_value_that_does_not_fit_changes_nothing(
    bundle: Bundle, name: str, value: np.ndarray[tuple[int], np.dtype[np.float64]], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        parameters.put(bundle.path, {name: value})
    assert Bundle.open(bundle.path).fingerprint == bundle.fingerprint
    assert [path.name for path in bundle.path.parent.iterdir()] == ["b"]


def test_the_command_shows_takes_out_and_puts_in(usual: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "bias.npy"
    assert edged("artifacts", "params", usual.path, "--get", "layer2.bias", "-o", file).code == 0
    np.save(file, np.load(file) + 0.5)
    answer = edged("artifacts", "params", usual.path, "--set", f"layer2.bias={file}", "--json").json
    assert {row["name"]: row["min"] for row in answer["parameters"]}["layer2.bias"] == 0.5
    assert "layer2.bias" in edged("artifacts", "params", usual.path).out


def test_a_command_that_is_not_whole_says_what_is_missing(usual: Bundle) -> None:
    for more, word in ((["--get", "layer2.bias"], "-o"), (["--set", "layer2.bias"], "--set")):
        answer = edged("artifacts", "params", usual.path, *more)
        assert answer.code == 2
        assert word in answer.problem


# ---- checkpoints -----------------------------------------------------------------------------


def trained(folder: Path, engine: str) -> Path:
    """A directory that an engine has saved after a step."""
    made = build(mlp(4, 2, (3,)), folder / "b", loss="mse", freeze=["layer1.bias"], engine=engine)
    opened = open_engine(engine, made)
    opened.step(np.ones((2, 4), np.float32), np.ones((2, 2), np.float32))
    (folder / "generation").mkdir()
    opened.save(folder / "generation")
    return folder / "generation"


@pytest.mark.parametrize("engine", ["native", "portable"])
def test_a_generation_of_checkpoints_is_read_and_stays_as_it_is(tmp_path: Path, engine: str) -> None:
    path = trained(tmp_path, engine)
    rows = {row.name: row for row in parameters.describe(path).parameters}
    assert (rows["layer1.weight"].trainable, rows["layer1.bias"].trainable) == (True, False)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(ConfigError, match="a generation of checkpoints stays as it is"):
        parameters.put(path, {"layer1.bias": np.ones(3)})
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


@needs_native
def test_a_native_checkpoint_is_changed_and_its_optimizers_state_stays(tmp_path: Path) -> None:
    file = trained(tmp_path, "native") / "checkpoint"
    before = replace(checkpoint.read(file), properties={"note": "by hand"})
    file.write_bytes(checkpoint.dump(before))
    parameters.put(file, {"layer1.bias": np.full(3, 0.5)})
    api = training_api.load("api")
    state = api.CheckpointState.load_checkpoint(str(file))
    np.testing.assert_array_equal(state.parameters["layer1.bias"].data, np.full(3, 0.5, np.float32))
    assert dict(iter(state.properties)) == {"note": "by hand"}
    after = checkpoint.read(file)
    assert (after.step, after.moments.keys()) == (before.step, before.moments.keys())
    for name, moments in before.moments.items():
        np.testing.assert_array_equal(after.moments[name], moments)


@needs_native
def test_what_upstream_has_made_is_read_and_changed(tmp_path: Path) -> None:
    artifacts = training_api.load("artifacts")
    artifacts.generate_artifacts(
        mlp(4, 2, (3,)), requires_grad=["layer1.weight"], loss=artifacts.LossType.MSELoss,
        frozen_params=["layer1.bias", "layer2.weight", "layer2.bias"],
        optimizer=artifacts.OptimType.AdamW, artifact_directory=str(tmp_path), nominal_checkpoint=True,
    )  # fmt: skip
    rows = {row.name: row.trainable for row in parameters.describe(tmp_path).parameters}
    assert rows == {"layer1.weight": True, "layer1.bias": False, "layer2.weight": False, "layer2.bias": False}
    parameters.put(tmp_path, {"layer2.bias": np.array([3.0, 4.0])})
    np.testing.assert_array_equal(parameters.get(tmp_path, "layer2.bias"), [3, 4])
    assert verify(tmp_path).ok
    with pytest.raises(BundleError, match="nominal, its parameters are elsewhere"):
        parameters.describe(tmp_path / "nominal_checkpoint")


def test_what_is_no_checkpoint_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptError, match="the checkpoint cannot be read: it has another beginning"):
        parameters.describe(tmp_path / "f")
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(BundleError, match="neither a bundle nor a checkpoint"):
            parameters.describe(path)
