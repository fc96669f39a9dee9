"""Weights that leave a device over MQTT and come into one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.training.update_manifest import TransferManifest
from edged.domain.training.weight_coding import fingerprint
from edged.mqtt import weight_encoding
from tests.running_device import Device, Listener, running, wait_until

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

    Weights = dict[str, np.ndarray[Any, np.dtype[np.float32]]]

STREAM: dict[str, Any] = {"features": 6, "classes": 3, "label": "y"}
QUIET: dict[str, Any] = {"every": None, "new_labels": 0, "engine": "portable", "learning_rate": 0.01}
GATE = {"probation": 0, "min_holdout": 10}


def feed(listener: Listener, count: int, seed: int = 0) -> None:
    """Labelled samples of a rule that a small network learns at once."""
    x = np.random.default_rng(seed).normal(size=(count, 6))
    before = len(listener.messages["predictions"])
    for row in x:
        listener.send("sensors/a", {"x": row.tolist(), "y": int(np.argmax(row[:3]))})
    listener.wait(lambda: len(listener.messages["predictions"]) >= before + count, 60)


def trained(listener: Listener) -> int:
    """Train on command; the version that took over."""
    before = len(listener.events("model_promoted"))
    assert listener.request("train", steps=300)["status"] == "ok"
    listener.wait(lambda: len(listener.events("model_promoted")) > before, 60)
    return int(listener.events("model_promoted")[-1]["version"])


def fetched(listener: Listener, **wish: Any) -> tuple[Mapping[str, Any], list[bytes]]:
    """Ask for an update and take what is published: manifest and chunks."""
    listener.raw.clear()
    answer = listener.request("weights.get", **wish)
    assert answer["status"] == "ok", answer
    version = answer["data"]["version"]
    listener.wait(lambda: listener.raw[f"weights/{version}/manifest"])
    manifest = json.loads(listener.raw[f"weights/{version}/manifest"][-1])
    return manifest, [listener.raw[f"weights/{version}/{n}"][-1] for n in range(len(manifest["chunks"]))]


def decoded(manifest: Mapping[str, Any], chunks: list[bytes]) -> Weights:
    read = TransferManifest.from_json(manifest)
    return weight_encoding.received(read, b"".join(chunks))


def sent(
    listener: Listener, transfer: str, manifest: Mapping[str, Any], chunks: list[bytes]
) -> dict[str, Any]:
    """Announce an update, send what is missing, and wait for what becomes of it."""
    answer = listener.request("weights.apply", transfer=transfer, manifest=manifest)
    assert answer["status"] == "ok", answer
    for number in answer["data"]["missing"]:
        listener.publish(f"{answer['data']['topic']}/{number}", chunks[number])
    return outcome(listener, transfer)


def outcome(listener: Listener, transfer: str) -> dict[str, Any]:
    def told() -> list[dict[str, Any]]:
        return [e for e in listener.events("weights_applied") if e["transfer"] == transfer]

    listener.wait(told, 60)
    return told()[-1]


def announced(values: Weights, chunk: int = 4096) -> tuple[Mapping[str, Any], list[bytes]]:
    """Whole weights as a server would send them."""
    blob = weight_encoding.pack(values)
    chunks = weight_encoding.split(blob, chunk)
    sizes = weight_encoding.manifest(blob, chunks).to_json()
    return {"encoding": weight_encoding.ENCODING, "version": "fleet", **sizes}, chunks


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_weights_go_out_in_every_form_and_come_back_through_the_gate(
    broker: Mosquitto, tmp_path: Path
) -> None:
    device = Device(
        tmp_path, broker.port, STREAM, training=QUIET, gate=GATE, report={"every": "1s"},
        weights={"chunk": "1KiB"}, outbox={"rate": 2000},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        feed(listener, 900)
        version = trained(listener)
        whole = decoded(*fetched(listener))
        check_forms(listener, version, whole)
        check_some_chunks(listener)
        listener.request("rollback", version=1)
        check_application(listener, whole)
        check_refusals(listener, whole)
        check_training_goes_on(listener)
        check_kill(device, listener, whole)


def check_forms(listener: Listener, version: int, whole: Weights) -> None:
    sizes = {}
    for dtype, off in (("float32", 0.0), ("int8", 0.15)):
        manifest, chunks = fetched(listener, dtype=dtype)
        got = decoded(manifest, chunks)
        assert (manifest["version"], manifest["dtype"]) == (version, dtype)
        assert all(np.abs(got[name] - whole[name]).max() <= off + 1e-6 for name in whole)
        sizes[dtype] = manifest["bytes"]
    assert sizes["int8"] < 0.4 * sizes["float32"]


def check_some_chunks(listener: Listener) -> None:
    manifest, chunks = fetched(listener)
    assert len(chunks) > 3
    listener.raw.clear()
    answer = listener.request("weights.get", chunks=[2, 0])["data"]
    listener.wait(lambda: listener.raw[f"weights/{answer['version']}/manifest"])
    came = {topic.rpartition("/")[2] for topic in listener.raw if listener.raw[topic]}
    assert came == {"0", "2", "manifest"}
    assert answer["sent"] == 2
    again = json.loads(listener.raw[f"weights/{answer['version']}/manifest"][0])
    assert again["sha256"] == manifest["sha256"]
    assert "from 0 to" in listener.request("weights.get", chunks=[len(chunks)])["error"]


def check_application(listener: Listener, whole: Weights) -> None:
    """Resumed after a break and past a wrong chunk; the same transfer again has no second effect."""
    manifest, chunks = announced(whole)
    data = listener.request("weights.apply", transfer="t1", manifest=manifest)["data"]
    assert data["state"] == "receiving"
    assert data["missing"] == list(range(len(chunks)))
    listener.publish(f"{data['topic']}/0", chunks[0])
    listener.publish(f"{data['topic']}/1", chunks[0])
    other = announced({**whole, "output.bias": np.zeros(3, np.float32)})[0]
    refused = listener.request("weights.apply", transfer="t2", manifest=other)
    assert refused["reason"] == "refused"
    assert "another transfer" in refused["error"]
    told = sent(listener, "t1", manifest, chunks)
    assert told["state"] == "promoted"
    promoted = listener.events("model_promoted")[-1]
    assert (promoted["origin"], promoted["transfer"]) == ("weights", "t1")
    again = listener.request("weights.apply", transfer="t1", manifest=manifest)["data"]
    assert (again["state"], again["version"]) == ("promoted", promoted["version"])
    served = decoded(*fetched(listener))
    assert fingerprint(served) == fingerprint(whole)


def check_refusals(listener: Listener, whole: Weights) -> None:
    champion = listener.request("status")["data"]["model"]["version"]
    name = next(iter(sorted(whole)))
    noise = np.random.default_rng(0)
    cases = {
        "shape": ({**whole, name: np.zeros((2, 2), np.float32)}, "shape"),
        "noise": (
            {n: np.asarray(v + noise.normal(0, 30, v.shape), np.float32) for n, v in whole.items()},
            "",  # the gate says why
        ),
    }
    for transfer, (values, reason) in cases.items():
        told = sent(listener, transfer, *announced(values))
        assert told["state"] == "refused"
        assert reason in told["reasons"][0]
    manifest, chunks = fetched(listener, dtype="int8")
    told = sent(listener, "unknown", {**manifest, "parameters": "0" * 64}, chunks)
    assert "other parameters than its manifest" in told["reasons"][0]
    large = {**manifest, "bytes": 10**9, "chunks": [{"bytes": 10**9, "sha256": "0" * 64}]}
    assert "at most" in listener.request("weights.apply", transfer="large", manifest=large)["error"]
    assert "letters" in listener.request("weights.apply", transfer="../x", manifest=manifest)["error"]
    assert listener.request("status")["data"]["model"]["version"] == champion


def check_training_goes_on(listener: Listener) -> None:
    """The next run begins with the applied weights: without training to speak of it does well."""
    feed(listener, 300, seed=1)
    before = len(listener.events("training_finished"))
    listener.request("train", steps=1, learning_rate=1e-6)
    listener.wait(lambda: len(listener.events("training_finished")) > before, 60)
    finished = listener.events("training_finished")[-1]
    assert finished["loss_last"] < 0.5


def check_kill(device: Device, listener: Listener, whole: Weights) -> None:
    """A daemon that is killed when all has come carries the transfer out after its restart, once."""
    manifest, chunks = announced({name: value * np.float32(1.01) for name, value in whole.items()})
    topic = listener.request("weights.apply", transfer="killed", manifest=manifest)["data"]["topic"]
    for number, chunk in enumerate(chunks):
        listener.publish(f"{topic}/{number}", chunk)
    device.stop(9)
    starts = len(listener.events("started"))
    device.start()
    listener.wait(lambda: len(listener.events("started")) > starts, 60)
    states = []

    def ended() -> bool:
        states.append(listener.request("weights.apply", transfer="killed", manifest=manifest)["data"])
        for number in states[-1].get("missing", ()):  # what the killed one had not written down
            listener.publish(f"{topic}/{number}", chunks[number])
        return states[-1]["state"] in ("promoted", "refused")

    wait_until(ended, 60)
    assert ended()
    assert states[-1] == states[-2]
