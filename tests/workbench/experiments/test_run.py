"""`edged recipe run` as a whole: child processes, report, page, and a winner that a device takes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from edged.config.loader import load
from edged.domain.judging.metrics import classification
from edged.engines.inference import InferenceModel
from edged.storage.models.bundles import Bundle
from tests.commands import COMMAND, edged, strict_json, two_classes
from tests.running_device import Device, running, wait_until
from tests.workbench.evaluation.test_report import Page

if TYPE_CHECKING:
    from edged.workbench.demo.broker import Mosquitto

pytestmark = pytest.mark.slow

STREAM = {"features": 4, "classes": ["worn & torn", "<ok>"], "topic": "plant/rig"}


def write(folder: Path, *entries: dict[str, Any], stream: dict[str, Any] = STREAM, **keys: Any) -> Path:
    path = folder / "recipes.yaml"
    path.write_text(yaml.safe_dump({"name": "rig", "stream": stream, "recipes": list(entries)} | keys))
    return path


def stripes(n: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two classes that no linear model tells apart: whether the first feature is far from 0."""
    x, _ = two_classes(n)
    return x, (np.abs(x[:, 0]) > 0.7).astype(np.int64)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of which one recipe wins clearly, one is linear, and one takes other inputs."""
    folder = tmp_path_factory.mktemp("recipes")
    x, y = stripes(1200)
    np.savez(folder / "stripes.npz", X=x, y=y)
    narrow = edged("model", "new", "mlp", "--inputs", 3, "--outputs", 2, "-o", folder / "narrow.onnx")
    assert narrow.code == 0, narrow.err
    recipes = write(
        folder,
        {"name": "bent", "hidden": [16], "learning_rate": 0.03, "batch": 32, "epochs": 8, "patience": 3},
        {"name": "linear", "hidden": [[]], "learning_rate": 0.03, "epochs": 2},
        {"name": "narrow", "model": "narrow.onnx", "epochs": 2},
        seeds=2,
        threads=2,
        deploy={"train": ["last:1"], "freeze": ["*.bias"]},
    )
    answer = edged(
        "recipe", "run", recipes, "--data", folder / "stripes.npz", "-o", folder / "out", "--json",
        "--write", folder / "rig.yaml",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    return folder, answer.json


def test_recipes_are_ranked_and_a_failure_is_a_row(done: tuple[Path, dict[str, Any]]) -> None:
    folder, report = done
    assert [row["name"] for row in report["ranking"]] == ["bent", "linear"]
    bent, linear = (row["validation"]["balanced_accuracy"] for row in report["ranking"])
    assert min(bent["seeds"]) > 0.9
    assert linear["mean"] < 0.7
    (failed,) = report["failed"]
    assert failed["name"] == "narrow"
    assert [reason["seeds"] for reason in failed["reasons"]] == [[0, 1]]
    assert "the model has 3 features, the stream has 4" in failed["reasons"][0]["reason"]
    assert report["rows"] == {"train": 720, "validation": 240, "test": 240}
    kept = strict_json((folder / "out" / "report.json").read_text())
    for row, told in zip(kept["ranking"], report["ranking"], strict=True):
        assert [len(curve) for curve in row["curves"]] == row["epochs"] == told["epochs"]
        assert 0 < row["step_us"] < 1e6
        assert 20e6 < row["peak_bytes"] < 400e6
        assert row["model_bytes"] < row["bundle_bytes"]
    assert [row["parameters"] for row in kept["ranking"]] == [4 * 16 + 16 + 2 * 16 + 2, 2 * 4 + 2]
    confusion = np.array(kept["ranking"][0]["shown"]["confusion"])
    assert confusion.sum() == 240


def test_the_page_is_whole_and_loads_nothing(done: tuple[Path, dict[str, Any]]) -> None:
    folder, report = done
    html = (folder / "out" / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert page.heads == [
        "Balanced accuracy (higher is better)", "Ranking", "Learning curves", "Answers of the winner",
        "Failed", "How it was done",
    ]  # fmt: skip
    first = report["ranking"][0]["validation"]["balanced_accuracy"]
    assert f"{100 * first['mean']:.1f} %" in page.text
    assert "worn & torn" in page.text
    assert "<ok>" not in html
    assert "src=" not in html
    assert "href=" not in html
    assert "url(" not in html


def test_the_winner_is_written_with_its_weights(done: tuple[Path, dict[str, Any]]) -> None:
    folder, report = done
    checked = edged("config", "check", folder / "rig.yaml")
    assert checked.code == 0, checked.err
    config = load(folder / "rig.yaml", {})
    assert (config.device.id, config.stream.topic, config.training.batch) == ("rig", "plant/rig", 32)
    assert config.training.threads == 2
    assert config.model.bundle is not None
    bundle = Bundle.open(config.model.bundle)
    bundle.check_schema(config.stream.to_schema())
    assert list(bundle.output.names) == STREAM["classes"]
    assert bundle.trainable == ("layer2.weight",)
    x, y = stripes(1200)
    answers = InferenceModel(bundle.inference_model).predict(x[720:960]).argmax(axis=1)
    found = classification(y[720:960].astype(np.float64), answers.astype(np.float64), 2)
    first = report["ranking"][0]["validation"]["balanced_accuracy"]
    assert report["written"]["seed"] == int(np.argmax(first["seeds"]))
    assert found["balanced_accuracy"] == pytest.approx(max(first["seeds"]), abs=1e-6)
    verified = edged("artifacts", "verify", config.model.bundle)
    assert verified.code == 0, verified.err


def test_what_was_written_evaluates_from_the_winner_on(done: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = done
    x, y = stripes(1200)
    np.savez(folder / "later.npz", X=x[960:], y=y[960:])
    answer = edged(
        "evaluate", folder / "rig.yaml", "--data", folder / "later.npz", "--json", "--pretrain", 0,
        EDGED_TRAINING__ENABLED="false",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert answer.json["scored"] == 240
    assert answer.json["frozen"]["accuracy"] > 0.85


def test_a_daemon_serves_the_winner_at_once(
    done: tuple[Path, dict[str, Any]], broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(tmp_path, broker.port, {"features": 4})
    device.path = done[0] / "rig.yaml"
    monkeypatch.setenv("EDGED_MQTT__HOST", "127.0.0.1")
    monkeypatch.setenv("EDGED_MQTT__PORT", str(broker.port))
    monkeypatch.setenv("EDGED_STORAGE__DIR", str(device.state))
    with running(device, broker.port) as listener:
        for value in (2.0, 0.0, -2.0):
            listener.publish("plant/rig", json.dumps({"x": [value, 0.0, 0.0, 0.0]}))
        listener.wait(lambda: len(listener.messages["predictions"]) == 3)
    told = [prediction["label"] for prediction in listener.messages["predictions"]]
    assert told == ["<ok>", "worn & torn", "<ok>"]


def test_nothing_is_overwritten(done: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = done
    command = ("recipe", "run", folder / "recipes.yaml", "--data", folder / "stripes.npz", "-o")
    again = edged(*command, folder / "out")
    assert again.code == 2
    assert "exists already, with report.html (choose another name, or add --force)" in again.problem
    itself = edged(*command, tmp_path, "--write", folder / "other.bundle")
    assert itself.code == 2
    assert "this is where the bundle goes (name it .yaml)" in itself.problem
    taken = edged(*command, tmp_path, "--write", folder / "rig.yaml")
    assert taken.code == 2
    assert "exists already (choose another name, or add --force)" in taken.problem


def test_a_run_of_failures_alone_fails_with_a_report(tmp_path: Path) -> None:
    x, y = two_classes(300)
    np.savez(tmp_path / "far.npz", X=x, y=1e18 * y)
    recipes = write(
        tmp_path, {"hidden": [4], "optimizer": "sgd", "learning_rate": 9.0, "epochs": 40, "name": "wild"},
        stream={"features": 4}, seeds=1, timeout=60,
    )  # fmt: skip
    answer = edged("recipe", "run", recipes, "--data", tmp_path / "far.npz", "-o", tmp_path / "out", "--json")
    assert answer.code == 1
    assert "all recipes failed, the first because the loss is no longer finite in epoch" in answer.problem
    report = strict_json((tmp_path / "out" / "report.json").read_text())
    assert report["ranking"] == []
    assert "lower learning_rate" in Page((tmp_path / "out" / "report.html").read_text()).text


def test_an_interrupt_ends_every_training(tmp_path: Path) -> None:
    x, y = two_classes(4000)
    np.savez(tmp_path / "long.npz", X=x, y=y)
    recipes = write(
        tmp_path, {"epochs": 10_000, "name": "long"}, stream={"features": 4, "classes": 2}, seeds=3
    )
    home = tmp_path / "tmp"
    home.mkdir()
    command = [*COMMAND, "recipe", "run", recipes, "--data", tmp_path / "long.npz", "-o", tmp_path / "out"]
    with subprocess.Popen(
        [*map(str, command), "--jobs", "2"],
        env=os.environ | {"TMPDIR": str(home)},
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        trained = "edged-recipe-*/*/model.onnx"
        wait_until(lambda: len(list(home.glob(trained))) == 2, seconds=60)
        children = _children(run.pid)
        assert len(children) == 2
        run.send_signal(signal.SIGINT)
        _, told = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "Traceback" not in told
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []
    assert list(home.iterdir()) == []


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
