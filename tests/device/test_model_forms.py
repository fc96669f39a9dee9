"""A device whose models are in ORT format and serve as int8: trained, swapped, killed, rolled back."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.bundles.build import build
from edged.bundles.export.forms import RequestedForms
from edged.bundles.graph.templates import mlp
from edged.bundles.source.standardise import Statistics
from edged.engines.inference import InferenceModel
from tests.commands import edged
from tests.installed import USUAL
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from edged.workbench.demo.broker import Mosquitto

STREAM: dict[str, Any] = {"features": 6, "classes": 3, "label": "y"}
TRAINING: dict[str, Any] = {"every": None, "new_labels": 0, "engine": USUAL, "learning_rate": 0.01}
SECTIONS: dict[str, Any] = {
    "training": TRAINING,
    "gate": {"probation": 0, "min_holdout": 10},
    "serving": {"quantise": "int8"},
}
ROW = [0.30, 0.25, 0.28, 0.5, -0.7, 0.9]  # of no class for certain


def feed(listener: Listener, count: int) -> None:
    """Labelled samples of a rule that a small network learns at once."""
    for row in np.random.default_rng(0).normal(size=(count, 6)):
        listener.send("sensors/a", {"x": row.tolist(), "y": int(np.argmax(row[:3]))})
    listener.wait(lambda: len(listener.messages["predictions"]) >= count, 60)


def asked(listener: Listener) -> dict[str, Any]:
    """The prediction of one row that comes alone."""
    before = len(listener.messages["predictions"])
    listener.send("sensors/a", {"x": ROW})
    listener.wait(lambda: len(listener.messages["predictions"]) > before)
    return listener.messages["predictions"][-1]


def serving(listener: Listener, version: int, form: str) -> None:
    """Wait until the retained state says so."""

    def told() -> bool:
        states = listener.messages["state/model"]
        return bool(states) and (states[-1]["version"], states[-1]["form"]) == (version, form)

    listener.wait(told)


def probabilities(path: Path) -> list[float]:
    """What a model file answers to the row."""
    raw = InferenceModel(path).predict(np.array([ROW], np.float32))[0].astype(np.float64)
    made = np.exp(raw - raw.max())
    return [float(value) for value in made / made.sum()]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_form_that_passed_the_gate_serves_through_kills_and_rollbacks(
    broker: Mosquitto, tmp_path: Path
) -> None:
    bundle = build(
        mlp(6, 3, (32,)), tmp_path / "bundle", loss="cross_entropy", standardise=Statistics.identity(6),
        forms=RequestedForms(ort_format=True, int8=True),
    )  # fmt: skip
    device = Device(tmp_path, broker.port, STREAM, model={"bundle": str(bundle.path)}, **SECTIONS)
    with running(device, broker.port) as listener:
        feed(listener, 700)
        assert listener.request("train", steps=300)["status"] == "ok"
        listener.wait(lambda: listener.events("model_promoted"), 60)
        event = listener.events("model_promoted")[-1]
        version, numbers = event["version"], event["numbers"]
        assert event["form"] == "int8", event["reasons"]
        assert numbers["int8_samples"] >= 10
        assert numbers["int8_error"] == pytest.approx(numbers["float32_error"], abs=0.05)
        assert "served as int8" in event["reasons"][-1]
        serving(listener, version, "int8")
        folder = device.state / "models" / str(version)
        assert {"model.ort", "model.int8.ort"} <= {path.name for path in folder.iterdir()}
        answer = asked(listener)
        assert answer["output"] == pytest.approx(probabilities(folder / "model.int8.ort"), abs=1e-4)
        off = np.abs(np.subtract(answer["output"], probabilities(folder / "model.ort"))).max()
        assert off > 1e-4, "the other form answers a little differently"
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["model"]["verdict"]["form"] == "int8"
        check_kill(device, listener, version, answer)
        check_changes(listener, version)
        assert listener.request("export", version=version)["status"] == "ok"
        wait_until((device.state / "exports" / f"model-{version}.ort").exists)
    refuse_without_form(device, tmp_path)


def check_kill(device: Device, listener: Listener, version: int, before: dict[str, Any]) -> None:
    """After a kill the same form of the same model answers, bit for bit."""
    listener.messages["state/model"].clear()
    device.stop(signal.SIGKILL)
    listener.messages["status"].clear()
    device.start()
    listener.wait(lambda: any(s["state"] == "online" for s in listener.messages["status"]), 60)
    serving(listener, version, "int8")
    after = asked(listener)
    assert (after["model"], after["output"]) == (version, before["output"])


def check_changes(listener: Listener, version: int) -> None:
    """Back to the bundle's own model, which no gate has judged as int8, and forward again."""
    assert listener.request("rollback", version=1)["status"] == "ok"
    serving(listener, 1, "float32")
    assert listener.request("promote", version=version)["status"] == "ok"
    serving(listener, version, "int8")


def refuse_without_form(device: Device, folder: Path) -> None:
    """A bundle that has no such form is named before anything serves."""
    plain = build(mlp(6, 3, (32,)), folder / "plain", loss="cross_entropy")
    text = device.path.read_text(encoding="utf-8").replace(str(folder / "bundle"), str(plain.path))
    device.path.write_text(text, encoding="utf-8")
    assert "has no int8 form" in edged("run", device.path).problem
    assert any("has no int8 form" in line for line in edged("doctor", device.path).out.splitlines())
