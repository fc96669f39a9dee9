"""A model and a bundle that are installed on a running device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.mqtt import weight_encoding
from edged.storage.models.bundle_archive import pack_bundle
from edged.storage.models.registry import Registry
from tests.building import build
from tests.device.linear import BAD, GOOD, write
from tests.running_device import Device, Listener, running

if TYPE_CHECKING:
    from edged.storage.models.bundles import Bundle
    from tests.mosquitto import Mosquitto

STREAM: dict[str, Any] = {"features": 3, "classes": 2, "label": "y"}
CHUNK = 20_000
QUIET: dict[str, Any] = {"every": None, "new_labels": 0, "engine": "portable"}


def made(folder: Path, name: str, *, inputs: int = 3) -> tuple[Bundle, bytes]:
    """A bundle whose own model is right from the start, as a file."""
    model = write(folder / f"{name}.onnx", GOOD, inputs=inputs)
    bundle = build(model, folder / name, loss="cross_entropy", engine="portable")
    pack_bundle(bundle.path, folder / f"{name}.edged")
    return bundle, (folder / f"{name}.edged").read_bytes()


def feed(listener: Listener, count: int, seed: int = 0) -> None:
    x = np.random.default_rng(seed).normal(size=(count, 3))
    before = len(listener.messages["predictions"])
    for row in x:
        listener.send("sensors/a", {"x": row.tolist(), "y": int(row[0] > 0)})
    listener.wait(lambda: len(listener.messages["predictions"]) >= before + count, 60)


def outcome(listener: Listener, transfer: str, kind: str = "bundle") -> dict[str, Any]:
    def told() -> list[dict[str, Any]]:
        return [e for e in listener.events(f"{kind}_installed") if e["transfer"] == transfer]

    listener.wait(told, 60)
    return told()[-1]


def announce(listener: Listener, transfer: str, content: bytes, kind: str = "bundle") -> dict[str, Any]:
    """Announce a file; the answer."""
    chunks = weight_encoding.split(content, CHUNK)
    manifest = weight_encoding.manifest(content, chunks).to_json()
    return listener.request(f"{kind}.install", transfer=transfer, manifest=manifest)


def send(listener: Listener, transfer: str, content: bytes, kind: str = "bundle") -> None:
    """Announce a file and send its chunks."""
    answer, chunks = announce(listener, transfer, content, kind), weight_encoding.split(content, CHUNK)
    assert answer["status"] == "ok", answer
    for number in answer["data"]["missing"]:
        listener.publish(f"{answer['data']['topic']}/{number}", chunks[number])


def sent(listener: Listener, transfer: str, content: bytes, kind: str = "bundle") -> dict[str, Any]:
    send(listener, transfer, content, kind)
    return outcome(listener, transfer, kind)


def trained(listener: Listener) -> dict[str, Any]:
    before = len(listener.events("training_finished"))
    listener.request("train", steps=5)
    listener.wait(lambda: len(listener.events("training_finished")) > before, 60)
    return listener.events("training_finished")[-1]


@pytest.mark.slow
def test_a_model_of_the_same_network_is_installed_and_trained_on(broker: Mosquitto, tmp_path: Path) -> None:
    better = write(tmp_path / "better.onnx", GOOD).read_bytes()
    other = write(tmp_path / "other.onnx", GOOD, inputs=5).read_bytes()
    bundle = build(
        write(tmp_path / "poor.onnx", BAD), tmp_path / "bundle", loss="cross_entropy", engine="portable"
    )
    device = Device(
        tmp_path, broker.port, STREAM, training=QUIET, gate={"probation": 0}, install={},
        model={"bundle": str(bundle.path)},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        feed(listener, 600)
        assert "shape" in sent(listener, "other", other, "model")["reasons"][0]
        assert "no ONNX model" in sent(listener, "text", b"hello", "model")["reasons"][0]
        told = sent(listener, "better", better, "model")
        assert told["state"] == "promoted", told
        assert listener.events("model_promoted")[-1]["version"] == told["version"]
        trained(listener)
        feed(listener, 100, seed=2)
        rows = np.random.default_rng(2).normal(size=(100, 3))
        answers = [int(told["label"]) for told in listener.messages["predictions"][-100:]]
    assert (np.array(answers) == (rows[:, 0] > 0)).mean() > 0.9


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_bundle_takes_over_trains_and_is_rolled_back(broker: Mosquitto, tmp_path: Path) -> None:
    bundle, good = made(tmp_path, "good")
    wide = made(tmp_path, "wide", inputs=5)[1]
    device = Device(
        tmp_path, broker.port, STREAM, training=QUIET, gate={"probation": 0}, install={},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        feed(listener, 600)
        check_refusals(listener, good, wide)
        told = sent(listener, "u", good)
        assert told["state"] == "promoted", told
        promoted = listener.events("model_promoted")[-1]
        assert (promoted["origin"], promoted["version"]) == ("bundle_install", told["version"])
        assert announce(listener, "u", good)["data"]["version"] == told["version"]
        assert trained(listener)["bundle"] == bundle.fingerprint
        feed(listener, 50, seed=1)
        listener.request("rollback", version=1)
        finished = trained(listener)
        assert finished["outcome"] == "done"
        assert finished["bundle"] != bundle.fingerprint
    with Registry.open(device.state, readonly=True) as registry:
        assert registry.get(told["version"]).data.bundle == bundle.fingerprint


def check_refusals(listener: Listener, good: bytes, wide: bytes) -> None:
    """Nothing of it serves."""
    assert "features" in sent(listener, "wide", wide)["reasons"][0]
    torn = bytearray(good)
    torn[len(good) // 2] ^= 1
    assert sent(listener, "torn", bytes(torn))["state"] == "refused"
    assert "no bundle file" in sent(listener, "text", b"hello")["reasons"][0]
    assert "manifest" in listener.request("bundle.install", transfer="none")["error"]
    assert not listener.events("model_promoted")
