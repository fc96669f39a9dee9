"""The main job, end to end: real broker, real publisher process, real daemon, real trainer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker

from edged.domain.stream.schema import Schema
from edged.domain.training.update_manifest import TransferManifest
from edged.mqtt import weight_encoding
from edged.storage.samples.log import SampleLog
from tests.running_device import Device, Listener, running, wait_until
from tests.streams import stream

KEYS = 4


def publish(port: int, path: Path, rows: int, rate: int) -> subprocess.Popen[bytes]:
    script = Path(__file__).parents[1] / "publisher.py"
    return subprocess.Popen(
        [sys.executable, str(script), str(port), str(path), str(rows), str(KEYS), str(rate)]
    )


def check_predictions(listener: Listener, rows: int) -> None:
    predictions = listener.messages["predictions"]
    assert len(predictions) == rows
    assert sorted(int(p["id"]) for p in predictions) == list(range(rows)), "each exactly once"
    by_key: dict[str, list[int]] = defaultdict(list)
    for p in predictions:
        by_key[p["key"]].append(int(p["id"]))
    assert set(by_key) == {str(k) for k in range(KEYS)}
    for ids in by_key.values():
        assert ids == sorted(ids), "in order for each key"
    versions = [p["model"] for p in predictions]
    back = {(e["from"], e["to"]) for e in listener.events("model_rolled_back")}
    for before, after in pairwise(versions):
        assert after >= before or (before, after) in back, "versions go back only by a rollback"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "most"), [("elec2", 6_000), ("noaa_weather", 18_000)])
def test_every_message_is_stored_once_and_predicted_once_while_models_are_swapped(
    name: str, most: int, broker: Broker, tmp_path: Path
) -> None:
    x, y, path = stream(name, tmp_path)
    rows, classes = min(len(x), most), int(y.max()) + 1
    device = Device(
        tmp_path, broker.port,
        {"features": x.shape[1], "task": "classify", "classes": classes, "label": "y", "id": "id"},
        serving={"qos": 1}, training={"every": "12h", "new_labels": 200},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        publisher = publish(broker.port, path, rows, 2000)
        assert publisher.wait(200) == 0
        listener.wait(lambda: len(listener.messages["predictions"]) >= rows, 100)
        swapped = swaps_after(listener, runs=5)
        assert swapped >= 3
        status = device.cli("status", str(device.path))
    check_predictions(listener, rows)
    assert device.process is not None
    assert device.process.returncode == 0
    left = {file.name for file in device.state.iterdir() if file.name.endswith(("-wal", "-shm"))}
    assert not left, "an orderly end folds the write-ahead log into the file"
    assert status["samples"] == rows
    assert status["labels"] == rows
    assert status["quarantined"] == 0
    log = SampleLog.open(
        device.state / "samples.db", Schema((), x.shape[1], "classify", tuple(map(str, range(classes)))),
        readonly=True,
    )  # fmt: skip
    stored = log.rows(np.arange(1, rows + 1))
    assert len(stored) == rows
    assert stored.x.tobytes() == x[:rows].tobytes()
    assert stored.y[:, 0].astype(int).tolist() == y[:rows].tolist()
    log.close()


def swaps_after(listener: Listener, runs: int) -> int:
    """Swaps so far; a slow machine has learned the stream in fewer runs, so some more are asked for."""
    for _ in range(runs):
        before = judged(listener)
        if len(listener.events("model_promoted")) >= 3:
            break
        listener.request("train", steps=50)  # without new labels only on demand
        listener.wait(partial(more_judged, listener, before), 60)
    return len(listener.events("model_promoted"))


def judged(listener: Listener) -> int:
    return sum(len(listener.events(name)) for name in ("model_promoted", "candidate_rejected"))


def more_judged(listener: Listener, before: int) -> bool:
    return judged(listener) > before


def message(row: int, rng: np.random.Generator) -> dict[str, Any]:
    x = rng.normal(size=3)
    return {"id": f"s{row}", "x": x.tolist(), "y": int(x[0] > 0)}


SMALL: dict[str, Any] = {"features": 3, "classes": 2, "label": "y", "id": "id"}


def feed(listener: Listener, count: int, *, start: int = 0) -> None:
    rng = np.random.default_rng(start)
    for row in range(start, start + count):
        listener.send("sensors/a", message(row, rng))
    listener.wait(lambda: len(listener.messages["predictions"]) >= start + count, 60)


@pytest.mark.slow
def test_commands_answer_and_a_model_can_be_rolled_back(broker: Broker, tmp_path: Path) -> None:
    device = Device(
        tmp_path,
        broker.port,
        SMALL,
        training={"every": None, "new_labels": 0},
        report={"every": "1s"},
        weights={"every": 0},
    )
    listener_before = Listener(broker.port, "edged/rig")
    listener_before.publish("edged/rig/request/train", '{"transaction": "old"}', retain=True)
    listener_before.close()
    with running(device, broker.port) as listener:
        listener.wait(lambda: listener.messages["response/train"])
        refused = listener.messages["response/train"][0]
        assert refused["transaction"] == "old"
        assert refused["reason"] == "refused"
        assert "retained" in refused["error"]
        assert not listener.events("training_started")
        feed(listener, 600)
        answer = listener.request("train", transaction="t1", steps=300)
        assert answer["status"] == "ok"
        assert answer["transaction"] == "t1"
        listener.wait(lambda: listener.events("model_promoted"), 60)
        promoted = listener.events("model_promoted")[0]
        assert listener.events("training_finished")[0]["steps"] == 300
        check_weights(listener, promoted["version"])
        back = listener.request("rollback", transaction="t2")
        assert back["data"] == {"from": promoted["version"], "to": 1, "reason": "command"}
        feed(listener, 20, start=600)
        assert {p["model"] for p in listener.messages["predictions"][-20:]} == {1}
        # A sample is predicted before it is committed.
        wait_until(lambda: listener.request("status")["data"]["samples"] == 620)
        assert listener.request("status")["data"]["model"]["version"] == 1
        assert listener.request("nonsense")["status"] == "error"
        assert "steps" in listener.request("train", steps=-1)["error"]
    assert listener.messages["status"][-1]["state"] == "offline"


def answered(listener: Listener, count: int) -> Callable[[], bool]:
    return lambda: len(listener.messages["predictions"]) > count


def check_weights(listener: Listener, version: int) -> None:
    listener.wait(lambda: listener.raw[f"weights/{version}/manifest"], 30)
    manifest = TransferManifest.from_json(json.loads(listener.raw[f"weights/{version}/manifest"][0]))
    chunks = [listener.raw[f"weights/{version}/{n}"][0] for n in range(len(manifest.chunks))]
    parameters = weight_encoding.unpack(b"".join(chunks))
    assert parameters["input.mean"].shape == (12,)  # the features, and three differences of each
    assert all(np.isfinite(p).all() for p in parameters.values())


def test_bad_messages_are_quarantined_and_never_stop_the_stream(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, SMALL, training={"enabled": False})
    bad = [
        b"not json", b"[1, 2]", b'{"x": [1, 2, NaN]}', b'{"x": [1, 2]}', b'{"x": [1, "2", 3]}', b'{"y": 1}',
        b'{"x": [1, 2, 1e999]}', b'{"x": [1, 2, 3], "y": 2}', b"[" * 60_000, b"", b"\xff\xfe",
        b'{"x": "' + b"a" * 70_000 + b'"}',
    ]  # fmt: skip
    with running(device, broker.port) as listener:
        for payload in bad:
            listener.publish("sensors/a", payload)
        feed(listener, 50)
        listener.wait(lambda: any(m["quarantine"] == len(bad) for m in listener.messages["metrics"]))
        reasons = {e["reason"] for e in listener.events("sample_quarantined")}
        assert {
            "not_json",
            "not_finite",
            "shape",
            "wrong_type",
            "missing_field",
            "label",
            "too_deep",
            "too_big",
        } <= reasons
        status = device.cli("status", str(device.path))
    # The one whose label is unknown is kept without it.
    assert (status["samples"], status["quarantined"]) == (51, len(bad))


@pytest.mark.slow
def test_labels_on_their_own_topic_join_by_id(broker: Broker, tmp_path: Path) -> None:
    stream_section = SMALL | {"label": {"topic": "labels/#", "path": "y", "join": "id"}}
    device = Device(tmp_path, broker.port, stream_section, training={"enabled": False})
    rng = np.random.default_rng(0)
    with running(device, broker.port) as listener:
        for row in range(100):
            x = rng.normal(size=3).tolist()
            listener.send("sensors/a", {"id": f"s{row}", "x": x})
        listener.wait(lambda: len(listener.messages["predictions"]) == 100)
        for row in range(100):
            listener.send("labels/a", {"id": f"s{row}", "y": row % 2})
        listener.send("labels/a", {"id": "unknown", "y": 0})
        listener.wait(lambda: any(m["live"]["labelled"] == 100 for m in listener.messages["metrics"]))
        listener.wait(
            lambda: any(e["reason"] == "label_unmatched" for e in listener.events("sample_quarantined"))
        )
        status = device.cli("status", str(device.path))
    assert (status["samples"], status["labels"], status["quarantined"]) == (100, 100, 1)


@pytest.mark.slow
def test_a_killed_daemon_neither_loses_nor_doubles_a_message(broker: Broker, tmp_path: Path) -> None:
    x, y, path = stream("noaa_weather", tmp_path)
    rows = 6000
    stream_section = {"features": x.shape[1], "classes": int(y.max()) + 1, "label": "y"}
    device = Device(tmp_path, broker.port, stream_section, training={"enabled": False})
    with running(device, broker.port) as listener:
        publisher = publish(broker.port, path, rows, 2000)
        for kill in range(4):
            listener.wait(answered(listener, 600 * (kill + 1)), 60)
            device.stop(9)
            device.start()
        assert publisher.wait(100) == 0
        listener.wait(lambda: any(m["ingest"]["samples"] >= rows for m in listener.messages["metrics"]), 60)
    assert device.cli("status", str(device.path))["samples"] == rows
