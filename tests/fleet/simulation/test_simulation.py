"""A small fleet from end to end: real broker, coordinator and engines."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.cli.fleet import fleet_sim
from edged.errors import ConfigError
from edged.fleet.config import TrainSection
from edged.fleet.simulation.simulation import SimulationPlan, simulate
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
def test_a_fleet_learns_and_its_report_says_so(recording: Path, tmp_path: Path) -> None:
    arguments = [
        "fleet", "sim", recording, "--key", "person", "--unseen", "1", "--rounds", "2", "--epochs", "4",
        "--json", "-o", tmp_path / "out",
    ]  # fmt: skip
    done = edged(*arguments)
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["devices"], [r["round"] for r in report["rounds"]]) == (4, [1, 2])
    assert [r["updates"] for r in report["rounds"]] == [4, 4]
    assert report["final"]["unseen"] > 0.8
    assert report["final"]["unseen"] > report["central"]["unseen"] - 0.1
    assert report["final"]["mixed"]["mean"] > 0.8
    assert all(device["bytes"] > 0 for device in report["per_device"])
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<svg" in page
    assert "u-4" not in page.split("Devices, on rows")[1]  # it takes no part
    assert all(f"u-{number}" in page for number in range(4))
    assert set(report["alone"]) == {"epochs", "unseen", "mean", "worst"}
    for told in ("Strategy: mean, updates clipped at 1.", "each device alone", "clip_norm", "learning_rate"):
        assert told in page
    colours = re.findall(r"[.]line[.](\w+){stroke:(#[0-9a-f]{6})", page)
    assert len(dict(colours)) == len({colour for _, colour in colours}) == 4
    assert all(f".key.{name}::before{{background:" in page for name, _ in colours)


def test_updates_are_clipped_as_those_of_a_real_fleet(recording: Path) -> None:
    assert SimulationPlan(recording).clip_norm == TrainSection().clip_norm
    options = inspect.signature(fleet_sim).parameters
    assert options["clip_norm"].default == TrainSection().clip_norm
    assert options["noise"].default == TrainSection().noise


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_group_has_a_model_of_its_own_and_noise_is_on_updates(recording: Path) -> None:
    plan = SimulationPlan(
        recording, key="person", rounds=2, epochs=4, groups=("u-[34]",), noise=0.001, central=False,
        poison=0.2, attack="noise", reduce="median",
    )  # fmt: skip
    report: Mapping[str, Any] = simulate(plan).to_json()
    assert [len(report["per_device"]), len(report["groups"]["group-1"]["per_device"])] == [3, 2]
    assert [one["round"] for one in report["groups"]["group-1"]["rounds"]] == [1, 2]
    assert report["groups"]["group-1"]["final"]["mixed"]["mean"] > 0.8
    with pytest.raises(ConfigError, match="no device is called 'x'"):
        simulate(replace(plan, groups=("x",)))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_device_that_does_harm_is_cut_by_the_trimmed_mean(recording: Path) -> None:
    plan = SimulationPlan(
        recording, key="person", rounds=1, epochs=4, poison=0.2, attack="scale", reduce="trimmed_mean",
        trim=0.2, central=False,
    )  # fmt: skip
    report: Mapping[str, Any] = simulate(plan).to_json()
    assert report["poisoned"] == ["u-0"]
    assert report["rounds"][0]["updates"] == 5
    assert report["final"]["global"]["mean"] > 0.8


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_device_that_turns_its_updates_around_is_left_out(recording: Path) -> None:
    plan = SimulationPlan(
        recording, key="person", rounds=2, epochs=4, poison=0.2, attack="flip", reduce="trimmed_mean",
        trim=0.2, opposed="leave_out", central=False,
    )  # fmt: skip
    report: Mapping[str, Any] = simulate(plan).to_json()
    assert report["poisoned"] == ["u-0"]
    assert [entry["left_out"] for entry in report["rounds"]] == [["u-0"], ["u-0"]]
    assert report["final"]["global"]["mean"] > 0.8


def test_what_cannot_be_simulated_is_one_line(recording: Path) -> None:
    assert "nobody" in edged("fleet", "sim", recording, "--key", "nobody").problem


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_one_round_of_statistics_is_the_model_of_all_rows(recording: Path) -> None:
    done = edged(
        "fleet", "sim", recording, "--key", "person", "--unseen", "1", "--kind", "statistics",
        "--hidden", "32", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    report: dict[str, Any] = json.loads(done.out)
    assert [r["updates"] for r in report["rounds"]] == [4]
    assert report["closed_form"]["difference"] <= 1e-6
    assert report["final"]["unseen"] == report["closed_form"]["unseen"] > 0.9
    assert report["bytes"]["most"] <= 200_000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--kind", "sums"], "training or statistics"),
        (["--kind", "statistics", "--poison", "0.1"], "attacks"),
        (["--kind", "statistics", "--noise", "0.1"], "train.noise is for rounds of training"),
        (["--masks", "--group", "u-1"], "a group may have fewer devices than masks need"),
        (["--masks", "--reduce", "median"], "median looks at each update"),
    ],
)
def test_what_rounds_of_statistics_and_masks_cannot_have(
    recording: Path, arguments: list[str], told: str
) -> None:
    done = edged("fleet", "sim", recording, "--key", "person", *arguments)
    assert done.code == 2
    assert told in done.err
