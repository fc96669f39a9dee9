"""A small fleet from end to end: real broker, coordinator and engines."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.cli.fleet import fleet_sim
from edged.errors import ConfigError
from edged.fleet.config import TrainSection
from edged.fleet.simulation.devices import by_key, own_and_kept
from edged.fleet.simulation.simulation import SimulationPlan
from tests.commands import edged


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five people whose classes lie a little apart."""
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(5), 120)
    y = rng.integers(0, 3, len(person))
    centres, own = rng.normal(0, 2.0, (3, 6)), rng.normal(0, 0.8, (5, 6))
    x = centres[y] + own[person] + rng.normal(0, 0.7, (len(y), 6))
    path = tmp_path_factory.mktemp("data") / "people.npz"
    np.savez(path, X=x.astype(np.float32), y=y, person=person)
    return path


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("more", [[], ["--masks"], ["--reduce", "trimmed_mean", "--trim", "0.25"]])
def test_a_fleet_learns_and_its_report_says_so(recording: Path, tmp_path: Path, more: list[str]) -> None:
    out = tmp_path / "report.json"
    arguments = [
        "fleet", "sim", recording, "--key", "person", "--unseen", "1", "--rounds", "2", "--epochs", "4",
        "-o", out, *more,
    ]  # fmt: skip
    done = edged(*arguments)
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads(out.read_text())
    assert (report["devices"], [r["round"] for r in report["rounds"]]) == (4, [1, 2])
    assert [r["updates"] for r in report["rounds"]] == [4, 4]
    last = report["rounds"][-1]
    assert last["unseen"] > 0.8
    assert last["mean"] > 0.8
    assert last["served_mean"] > 0.8
    assert last["worst"] <= last["mean"]
    assert report["update_bytes"] > 0
    assert f"round 2: accepted, 4 updates: model {last['mean']:.1%}" in done.out


def test_updates_are_clipped_as_those_of_a_real_fleet(recording: Path) -> None:
    assert SimulationPlan(recording).clip_norm == TrainSection().clip_norm
    assert inspect.signature(fleet_sim).parameters["clip_norm"].default == TrainSection().clip_norm


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--key", "nobody"], "nobody"),
        (["--key", "person", "--masks", "--reduce", "median"], "median looks at each update"),
        (["--key", "person", "--unseen", "5"], "there are 5 keys"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(recording: Path, arguments: list[str], told: str) -> None:
    assert told in edged("fleet", "sim", recording, *arguments).problem


def test_each_row_belongs_to_one_device() -> None:
    rows = np.concatenate(list(by_key(["a", "b", "c"] * 100).values()))
    assert sorted(rows.tolist()) == list(range(300))
    assert by_key(["a", "b", "c"] * 100)["b"][:3].tolist() == [1, 4, 7]


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ConfigError, match="key b has 3 rows"):
        by_key(["a"] * 50 + ["b"] * 3)


def test_own_rows_and_kept_ones_are_different_and_alternate() -> None:
    rows = np.arange(1000, 1403)
    own, kept = parts = own_and_kept(rows)
    assert sorted(np.concatenate(parts).tolist()) == rows.tolist()
    assert len(own) > 3 * len(kept)
    assert all(part.min() < 1040 and part.max() > 1360 for part in parts)
