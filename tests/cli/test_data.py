"""Recorded data with text labels and rows that are no samples, for every command that reads data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.commands import edged, two_classes, write_config

NAMES = np.array(["away", "home"])
LEFT_OUT = (
    "3 of 300 rows are left out: 2 with an empty cell or NaN, 1 with a number beyond float32; "
    "the first is row 5"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("data")
    x, y = two_classes(300)
    cells = [[f"{value:.5f}" for value in row] for row in x]
    cells[5][0], cells[9][1], cells[11][2] = "", "nan", "1e40"
    lines = [",".join([*row, NAMES[label]]) for row, label in zip(cells, y, strict=True)]
    (made / "house.csv").write_text("\n".join(["a,b,c,d,presence", *lines]) + "\n")
    write_config(made, {"features": 4, "classes": NAMES.tolist()})
    assert edged("model", "new", "mlp", "--inputs", 4, "--outputs", 2, "-o", made / "model.onnx").code == 0
    return made


def test_a_bundle_is_built_from_data_with_text_labels(folder: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    built = edged(
        "artifacts", "build", folder / "model.onnx", "-o", bundle, "--loss", "cross_entropy",
        "--engine", "portable", "--data", folder / "house.csv", "--json",
    )  # fmt: skip
    assert built.code == 0, built
    assert built.json["notes"] == [LEFT_OUT]
    exported = edged(
        "artifacts", "export", bundle, "-o", tmp_path / "m.onnx", "--data", folder / "house.csv", "--json"
    )
    assert exported.code == 0, exported
    assert exported.json["difference"] == 0


@pytest.mark.slow
def test_an_evaluation_says_which_rows_are_left_out_and_why(folder: Path) -> None:
    asked = ["evaluate", folder / "edged.yaml", "--data", folder / "house.csv"]
    answer = edged(*asked)
    assert answer.code == 0, answer
    assert f"warning: {LEFT_OUT}" in " ".join(answer.err.split())
    told = edged(*asked, "--json").json
    assert (told["warnings"], told["quarantined"]) == ([LEFT_OUT], 3)


@pytest.mark.full
@pytest.mark.timeout(200)
def test_the_demo_replays_data_with_text_labels(folder: Path, tmp_path: Path) -> None:
    header, *lines = (folder / "house.csv").read_text().splitlines()
    data = tmp_path / "long.csv"
    data.write_text("\n".join([header, *lines * 8]) + "\n")
    answer = edged("demo", "--seconds", 10, "--data", data, "--json")
    assert answer.code == 0, answer
    assert answer.json["samples"] > 50


def test_the_column_of_the_labels_is_asked_for_with_those_there_are(tmp_path: Path) -> None:
    data = tmp_path / "d.csv"
    data.write_text("a,b,Stat\n" + "1,2,0\n" * 60)
    config = write_config(tmp_path, {"features": ["a", "b"], "classes": 2, "label": "state"})
    answer = edged("evaluate", config, "--data", data)
    told = "the data has no labels: no column 'state' (stream.label), or y, label or target"
    assert answer.problem == f"edged: --data: {told} (did you mean Stat?)"
    config = write_config(tmp_path, {"features": ["a", "b"], "classes": 2})
    answer = edged("evaluate", config, "--data", data)
    assert "no column y, label or target (it has a, b, Stat; stream.label names the column)" in answer.problem


@pytest.mark.parametrize(
    ("host", "remedy"),
    [
        ("mqtt://localhost", "set host: localhost"),
        ("mqtts://broker.example:8883", "set host: broker.example, port: 8883, tls: {}"),
        ("localhost:1883", "set host: localhost, port: 1883"),
    ],
)
def test_an_address_for_a_host_is_told_in_keys(host: str, remedy: str, tmp_path: Path) -> None:
    config = write_config(tmp_path, {"features": 2}, mqtt={"host": host})
    problem = edged("config", "check", config).problem
    assert f"mqtt.host: expected a name or an address alone, got {host!r}: {remedy}" in problem


def test_a_model_that_is_given_for_a_bundle_is_told(folder: Path) -> None:
    problem = edged("artifacts", "verify", folder / "model.onnx").problem
    assert "this is a model, not a bundle (`edged artifacts check` looks at a model" in problem


def test_names_that_are_too_few_are_told_with_where_they_come_from(folder: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, {"features": ["a", "b", "c"], "classes": 2})
    problem = edged(
        "artifacts", "build", folder / "model.onnx", "-o", tmp_path / "b", "--loss", "cross_entropy",
        "--engine", "portable", "--config", config,
    ).problem  # fmt: skip
    assert "--features, or --config: 3 names (a, b, c), the model has 4 inputs" in problem


@pytest.mark.slow
def test_after_a_wipe_the_counts_are_those_of_what_is_there(tmp_path: Path) -> None:
    x, y = two_classes(300)
    np.savez(tmp_path / "d.npz", X=x, y=y)
    config = write_config(tmp_path, {"features": 4, "classes": 2}, storage={"dir": "out"})
    assert edged("evaluate", config, "--data", tmp_path / "d.npz", "-o", tmp_path / "out").code == 0
    before = edged("status", config, "--json").json
    assert before["labels"] > 100
    assert edged("wipe", config, "--samples", "--yes").code == 0
    after = edged("status", config, "--json").json
    assert (after["labels"], after["quarantined"]) == (0, 0)
    assert after["evicted"] == after["samples"] == before["samples"], "all that ever came is gone"
