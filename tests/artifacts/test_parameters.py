"""Parameters of a bundle, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.artifacts import parameters
from edged.artifacts.build import build
from edged.artifacts.commands import read_parameters, write_parameter
from edged.artifacts.inspect import verify
from edged.artifacts.standardise import Statistics
from edged.artifacts.templates import mlp
from edged.engines import open_engine
from edged.errors import ConfigError
from edged.storage.bundles import Bundle
from tests.commands import edged

if TYPE_CHECKING:
    from pathlib import Path


FORMS: dict[str, dict[str, Any]] = {
    "both": {},
    "portable": {"engine": "portable"},
    "nominal": {"checkpoint": "nominal"},
    "apart": {"external_above": 0},
}


@pytest.fixture(params=FORMS)
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Bundle:
    statistics, more = Statistics.identity(4, 2), FORMS[request.param]
    return build(mlp(4, 2, (3,)), tmp_path / "b", loss="mse", standardise=statistics, **more)


def test_the_table_tells_shapes_and_values(bundle: Bundle) -> None:
    rows = {row["name"]: row for row in parameters.told(bundle.path)["parameters"]}
    assert rows["layer1.weight"]["shape"] == [3, 4]
    assert rows["layer1.weight"]["trainable"]
    assert not rows["input.mean"]["trainable"]
    assert rows["layer1.bias"]["max"] == 0.0
    weight = parameters.get(bundle.path, "layer1.weight")
    assert rows["layer1.weight"]["mean"] == pytest.approx(weight.mean())


def test_what_is_put_in_is_where_every_engine_begins(bundle: Bundle, tmp_path: Path) -> None:
    before = open_engine(bundle.engines[0], bundle).parameters()
    write_parameter(bundle.path, "layer1.weight", tmp_path / "w.npy")
    np.save(tmp_path / "other.npy", np.load(tmp_path / "w.npy") + 1)
    parameters.put(bundle.path, read_parameters([f"layer1.weight={tmp_path / 'other.npy'}"]))
    new = Bundle.open(bundle.path)
    assert new.fingerprint != bundle.fingerprint
    for name in new.engines:
        after = open_engine(name, new).parameters()
        np.testing.assert_array_equal(after["layer1.weight"], before["layer1.weight"] + 1)
        np.testing.assert_array_equal(after["layer2.weight"], before["layer2.weight"])
    # It is verified that checkpoint, inference model and both engines agree.
    assert verify(new.path)["ok"]


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


def test_the_command_shows_takes_out_and_puts_in(bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / "bias.npy"
    assert edged("artifacts", "params", bundle.path, "--get", "layer2.bias", "-o", file).code == 0
    np.save(file, np.load(file) + 0.5)
    answer = edged("artifacts", "params", bundle.path, "--set", f"layer2.bias={file}", "--json").json
    assert {row["name"]: row["min"] for row in answer["parameters"]}["layer2.bias"] == 0.5
    assert "layer2.bias" in edged("artifacts", "params", bundle.path).out


def test_a_command_that_is_not_whole_says_what_is_missing(bundle: Bundle) -> None:
    for more, word in ((["--get", "layer2.bias"], "-o"), (["--set", "layer2.bias"], "--set")):
        answer = edged("artifacts", "params", bundle.path, *more)
        assert answer.code == 2
        assert word in answer.problem
