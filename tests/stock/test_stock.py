"""Everything that edged does, without a training package: the oldest and the newest stock onnxruntime."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from paho.mqtt.publish import single

from edged.engines.inference import InferenceModel
from edged.storage.models.bundles import Bundle
from edged.workbench.demo.plant import simulated
from tests.commands import two_classes, write_config
from tests.running_device import running
from tests.stock.bundles import check, learned
from tests.stock.environments import Environment, StockDevice
from tests.streams import generated

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

pytestmark = pytest.mark.slow

STREAM = {"features": 8, "classes": 2}
WHAT_RUNS = """
import edged
from edged.engines.runtime.ort import onnxruntime
print(edged.__file__, onnxruntime.__version__)
"""


def test_what_runs_is_the_wheel_on_a_runtime_that_cannot_train(stock: Environment, tmp_path: Path) -> None:
    answer = stock.run("python", "-c", WHAT_RUNS, folder=tmp_path)
    assert answer.code == 0, answer.err
    where, version = answer.out.split()
    assert Path(where).is_relative_to(stock.home)
    assert f"onnxruntime=={version}" in (stock.home / "requirements.txt").read_text().split()
    packages = next(stock.home.glob("lib/python3*/site-packages"))
    assert [p.name for p in packages.glob("onnxruntime*.dist-info")] == [f"onnxruntime-{version}.dist-info"]
    assert not (packages / "onnxruntime" / "training" / "api").exists()


def test_imports_that_these_tests_forbid_are_found_out_even_when_caught(tmp_path: Path) -> None:
    stock = Environment.find("newest", tmp_path / "record")
    program = """
import subprocess, sys
try:
    import onnxruntime.training
except ImportError:
    subprocess.run([sys.executable, "-c", "import onnx"])
"""
    assert "onnx is not for this process" in stock.run("python", "-c", program, folder=tmp_path).err
    assert stock.record.read_text().split() == ["onnxruntime.training", "onnx"]


def test_the_doctor_finds_the_portable_engine(
    stock: Environment, broker: Broker, bundle: Path, tmp_path: Path
) -> None:
    config = write_config(
        tmp_path, STREAM, mqtt={"host": "127.0.0.1", "port": broker.port}, model={"bundle": str(bundle)},
        storage={"max_bytes": "1MiB"},
    )  # fmt: skip
    message = json.dumps({"x": [0.5] * 8})
    single("sensors/a", message, qos=1, retain=True, hostname="127.0.0.1", port=broker.port)
    answer = stock.run("edged", "doctor", config, "--json", folder=tmp_path)
    findings = {f["what"]: f for f in answer.json}
    assert {f["level"] for f in findings.values()} == {"ok"}, answer.out
    assert findings["engine"]["result"] == "portable: every operator that it needs is there"


def test_the_native_engine_is_refused_with_what_to_do(
    stock: Environment, bundle: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path, STREAM, model={"bundle": str(bundle)}, training={"engine": "native"})
    answer = stock.run("edged", "doctor", config, "--json", folder=tmp_path)
    found = next(f for f in answer.json if f["what"] == "engine")
    assert (answer.code, found["level"]) == (1, "error")
    assert "onnxruntime-training is not installed" in found["result"]


def test_the_daemon_trains_promotes_and_goes_on_predicting(
    stock: Environment, broker: Broker, bundle: Path, tmp_path: Path
) -> None:
    x, y = two_classes(900, 8)
    stream = STREAM | {"task": "classify", "label": "y", "id": "id"}
    device = StockDevice(
        stock, tmp_path, broker.port, stream, model={"bundle": str(bundle)},
        training={"every": None, "new_labels": 100_000},
    )  # fmt: skip
    with running(device, broker.port) as listener:

        def publish(start: int, end: int) -> None:
            for i in range(start, end):
                listener.send("sensors/a", {"id": str(i), "x": x[i].tolist(), "y": int(y[i])})
            listener.wait(lambda: len(listener.messages["predictions"]) >= end)

        publish(0, 600)
        assert listener.request("train", steps=200)["status"] == "ok"
        listener.wait(lambda: listener.events("training_finished"), 60)
        finished = listener.events("training_finished")[0]
        assert (finished["outcome"], finished["engine"]) == ("done", "portable"), device.log.read_text()
        listener.wait(lambda: listener.events("model_promoted"))
        publish(600, 900)
        predictions = listener.messages["predictions"]
    assert sorted(int(p["id"]) for p in predictions) == list(range(900)), "each exactly once"
    promoted = listener.events("model_promoted")[0]["version"]
    after = [p for p in predictions if p["model"] == promoted]
    assert len(after) >= 300
    right = np.mean([p["label"] == str(y[int(p["id"])]) for p in after])
    assert right > 0.9


def test_a_first_start_without_a_bundle_builds_trains_and_swaps(
    stock: Environment, broker: Broker, tmp_path: Path
) -> None:
    """And what each process has loaded: the daemon never the package that its child builds with."""
    x, y = two_classes(700, 8)
    processes = tmp_path / "processes"
    processes.mkdir()
    stream = STREAM | {"task": "classify", "label": "y", "id": "id"}
    training = {"every": None, "new_labels": 100_000}
    device = StockDevice(stock, tmp_path, broker.port, stream, training=training)
    with running(device, broker.port, EDGED_TEST_PROCESSES=str(processes)) as listener:
        for i in range(600):
            listener.send("sensors/a", {"id": str(i), "x": x[i].tolist(), "y": int(y[i])})
        listener.wait(lambda: len(listener.messages["predictions"]) >= 600)
        assert listener.request("train", steps=200)["status"] == "ok"
        listener.wait(lambda: listener.events("model_promoted"), 60)
        for i in range(600, 700):
            listener.send("sensors/a", {"id": str(i), "x": x[i].tolist()})
        listener.wait(lambda: len(listener.messages["predictions"]) >= 700)
        predictions = listener.messages["predictions"]
        assert {e["engine"] for e in listener.events("training_finished")} == {"portable"}
        assert device.process is not None
        daemon = device.process.pid
    assert sorted(int(p["id"]) for p in predictions) == list(range(700)), "each exactly once"
    after = [p for p in predictions if int(p["id"]) >= 600]
    assert {p["model"] for p in after} == {listener.events("model_promoted")[0]["version"]}
    assert np.mean([p["label"] == str(y[int(p["id"])]) for p in after]) > 0.9
    assert Bundle.open(device.state / "bundle").engine == "portable"

    told = {int(path.stem): json.loads(path.read_text()) for path in processes.iterdir()}
    assert "edged.device.pipeline" in told[daemon]["modules"], "the check looks at the right process"
    assert not {"onnx", "edged.bundles", "google.protobuf"} & set(told[daemon]["modules"])
    (builder,) = (number for number, one in told.items() if "onnx" in one["modules"])
    assert told[builder]["parent"] == daemon
    assert told[builder]["words"][-1] == "edged.bundles"
    if platform.machine() == "x86_64":
        assert told[builder]["peak"] < 150e6


def test_a_recorded_stream_is_evaluated(stock: Environment, bundle: Path, tmp_path: Path) -> None:
    x, y = generated(4000)
    np.savez(tmp_path / "stream.npz", X=x, y=y)
    config = write_config(tmp_path, STREAM, model={"bundle": str(bundle)}, training={"engine": "portable"})
    answer = stock.run("edged", "evaluate", config, "--data", "stream.npz", "--json", folder=tmp_path)
    assert answer.code == 0, answer.err
    report = answer.json
    assert report["engine"] == "portable"
    assert report["trainings"] > 0
    assert report["metric"]["accuracy"] > report["frozen"]["accuracy"]


@pytest.mark.full
def test_the_demo_builds_its_own_bundle(stock: Environment, tmp_path: Path) -> None:
    began = time.monotonic()
    answer = stock.run("edged", "demo", "--seconds", 10, "--rate", 60, "--json", folder=tmp_path)
    assert answer.code == 0, answer.err
    summary = answer.json
    assert time.monotonic() - began > 9.5, "no faster than it was asked for"
    assert summary["engine"] == "portable"
    assert summary["predictions"] == summary["samples"] == simulated(10, 0).commission + 10 * 60
    assert summary["swaps"] >= 1


def test_a_bundle_is_made_looked_at_and_exported(stock: Environment, tmp_path: Path) -> None:
    x, y = generated(2000)
    np.savez(tmp_path / "stream.npz", X=x, y=y)
    for words in (
        ("model", "new", "mlp", "--inputs", 8, "--outputs", 2, "-o", "m.onnx"),
        ("artifacts", "check", "m.onnx"),
        ("artifacts", "build", "m.onnx", "-o", "b", "--loss", "cross_entropy", "--data", "stream.npz"),
        ("artifacts", "inspect", "b"),
        ("artifacts", "export", "b", "-o", "out.onnx"),
    ):
        answer = stock.run("edged", *words, folder=tmp_path)
        assert answer.code == 0, f"{words}: {answer.err}"
    verified = stock.run("edged", "artifacts", "verify", "b", "--json", folder=tmp_path)
    assert verified.code == 0, verified.err
    assert Bundle.open(tmp_path / "b").engine == "portable"
    config = write_config(tmp_path, STREAM, model={"bundle": str(tmp_path / "b")})
    report = stock.run("edged", "evaluate", config, "--data", "stream.npz", "--json", folder=tmp_path).json
    assert report["engine"] == "portable"
    assert report["metric"]["accuracy"] > report["frozen"]["accuracy"]
    x = x[:32].astype(np.float32)
    given, exported = (InferenceModel(tmp_path / name) for name in ("b/inference_model.onnx", "out.onnx"))
    np.testing.assert_allclose(exported.predict(x), given.predict(x), rtol=1e-5, atol=1e-6)


def test_only_the_native_engine_needs_the_training_package(stock: Environment, tmp_path: Path) -> None:
    stock.run("edged", "model", "new", "mlp", "--inputs", 3, "--outputs", 2, "-o", "m.onnx", folder=tmp_path)
    words = ("artifacts", "build", "m.onnx", "-o", "b", "--loss", "mse", "--engine", "native")
    answer = stock.run("edged", *words, folder=tmp_path)
    assert answer.code == 4
    assert "onnxruntime-training is not installed" in answer.problem
    assert "--engine portable" in answer.problem
    assert not (tmp_path / "b").exists()


def test_what_an_installation_does_not_have_is_told_with_what_brings_it(tmp_path: Path) -> None:
    answer = Environment.find("newest", tmp_path / "record").run(
        "edged", "keys", "new", "-o", "key", folder=tmp_path
    )
    assert answer.code == 4
    assert 'pip install "edged[signing]"' in answer.problem


def test_a_daemon_that_cannot_check_signatures_refuses_to_start(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_text("a key")
    config = write_config(tmp_path, STREAM, model={"bundle": str(bundle)}, commands={"keys": ["key.pub"]})
    stock = Environment.find("newest", tmp_path / "record")
    answer = stock.run("edged", "run", config, folder=tmp_path)
    assert answer.code == 4
    assert 'pip install "edged[signing]"' in answer.err
    found = {f["what"]: f for f in stock.run("edged", "doctor", config, "--json", folder=tmp_path).json}
    assert found["keys"]["level"] == "error"


def test_losses_of_200_steps_are_those_of_the_native_engine(
    stock: Environment, compared: tuple[Path, dict[str, list[float]]], tmp_path: Path
) -> None:
    folder, expected = compared
    assert learned(expected)
    program = Path(__file__).with_name("losses.py")
    answer = stock.run("python", program, folder, folder=tmp_path)
    assert answer.code == 0, answer.err
    check(json.loads(answer.out), expected)
