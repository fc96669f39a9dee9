"""A running device is steered over MQTT, and everything that it says has the form that its schemas give."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.device.learning.scheduler import HELD_RUN
from tests.running_device import Device, running, wait_until
from tests.steered import answers, ask, conform, data

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener

STREAM = {"features": 3, "classes": 2, "label": "y"}
ON_COMMAND = {"engine": "portable", "every": None, "new_labels": 0}
LENIENT = {"min_gain": -1.0, "min_holdout": 1, "holdout": 0.2, "max_regret": 1.0, "probation": 0}


def feed(listener: Listener, count: int, name: str = "a", *, wait: bool = True) -> None:
    """Labelled samples: whether the first feature is above 0."""
    before = len(listener.messages["predictions"])
    for x in np.random.default_rng(count).normal(size=(count, 3)).round(3).tolist():
        listener.send(f"sensors/{name}", {"x": x, "y": int(x[0] > 0)})
    if wait:
        listener.wait(lambda: len(listener.messages["predictions"]) >= before + count, 60)


@pytest.mark.slow
def test_a_device_is_steered_with_every_command(broker: Broker, tmp_path: Path) -> None:
    device = Device(
        tmp_path,
        broker.port,
        STREAM,
        training=ON_COMMAND,
        gate=LENIENT,
        report={"every": "1s"},
        weights={"every": 0},
    )
    with running(device, broker.port) as listener:
        feed(listener, 400)
        told = data(listener, "capabilities")
        assert set(told["commands"]) >= {"train", "cancel", "config.set", "wipe"}
        assert (told["task"], told["features"], told["root"]) == ("classify", 3, "edged/rig")
        assert data(listener, "ping")["pong"] is True
        trains(listener)
        models(listener, device)
        assert data(listener, "checkpoint")["generation"] >= 1
        assert data(listener, "drift.reset")["forgotten"] >= 0
        settings(listener, device)
        wiped(listener, device)
        seen = conform(listener)
        assert {"metrics", "predictions", "events", "progress", "state/model", "state/config"} <= seen


def trains(listener: Listener) -> None:
    before = data(listener, "status")["model"]["version"]
    dry = data(listener, "train", steps=60, dry_run=True)
    assert (dry["outcome"], dry["steps"], dry["verdict"]["promoted"]) == ("done", 60, None)
    assert dry["verdict"]["accepted"] is True
    assert data(listener, "status")["model"]["version"] == before
    done = data(listener, "train", transaction="real", epochs=3)
    assert done["verdict"]["promoted"] == before + 1
    assert done["samples"] == dry["samples"], "the dry run has learned nothing"
    first, second = answers(listener, "train", "real")
    assert (first["state"], second["state"]) == ("accepted", "successful")
    assert any(told["state"] == "executing" for told in listener.messages["progress/real"])
    for base in ("champion", "bundle"):
        again = data(listener, "train", **{"from": base}, steps=20)
        assert (again["engine"], again["steps"]) == ("portable", 20)
    assert "1.5 is no integer" in ask(listener, "train", steps=1.5)["error"]
    listener.publish("edged/rig/request/train", json.dumps({"transaction": "long", "steps": 1_000_000}))
    listener.wait(lambda: any("step" in told for told in listener.messages["progress/long"]), 60)
    written = data(listener, "checkpoint")
    assert written["step"] > 0
    assert data(listener, "cancel", target="long")["cancelled"] == "train"
    listener.wait(lambda: len(answers(listener, "train", "long")) == 2, 30)
    assert "cancelled" in answers(listener, "train", "long")[1]["error"]
    assert ask(listener, "cancel")["reason"] == "refused"


def models(listener: Listener, device: Device) -> None:
    champion = data(listener, "status")["model"]["version"]
    judged = data(listener, "evaluate")
    assert (judged["version"], judged["rows"] > 10) == (champion, True)
    assert judged["figures"]["accuracy"] > 0.5
    assert data(listener, "evaluate", version=1, rows=10)["rows"] == 10
    change = data(listener, "promote", version=2)
    assert (change["from"], change["to"]) == (champion, 2)
    listener.wait(lambda: listener.events("model_promoted")[-1]["origin"] == "command")
    assert data(listener, "pin", version=1) == {"pinned": 1}
    assert "is pinned" in ask(listener, "promote", version=2)["error"]
    assert data(listener, "unpin") == {"unpinned": [1]}
    assert data(listener, "rollback", version=2)["to"] == 2
    assert "no model version 99" in ask(listener, "promote", version=99)["error"]
    for what in ("model", "weights", "mixture"):
        written = data(listener, "export", what=what, version=2)
        assert (device.state / written["file"]).stat().st_size == written["bytes"]


def settings(listener: Listener, device: Device) -> None:
    told = data(
        listener, "config.set", **{"training.steps": 77, "training.every": "3h", "log.level": "debug"}
    )
    assert told["reported"] == {"training.steps": 77, "training.every": None, "log.level": "debug"}
    assert told["needs_restart"] == ["training.every"]
    refused = ask(listener, "config.set", **{"training.steps": 0})
    assert "config.set: training.steps" in refused["error"]
    assert "does not take this key" in ask(listener, "config.set", **{"mqtt.host": "elsewhere"})["error"]
    assert data(listener, "config.get", keys=["training.steps"])["values"] == {"training.steps": 77}
    assert "mqtt" not in data(listener, "config.get")["values"]
    shown = device.cli("config", "show", str(device.path))
    assert (shown["training"]["steps"], shown["training"]["every"]) == (77, 10800.0)
    listener.wait(lambda: listener.messages["state/config"][-1]["desired"].get("training.steps") == 77)
    assert listener.messages["state/config"][-1]["training"]["steps"] == 77
    assert data(listener, "config.set", **{"training.every": None, "training.steps": None})["desired"] == {
        "log.level": "debug"
    }
    assert data(listener, "logs.level", level="info") == {"level": "info"}


def wiped(listener: Listener, device: Device) -> None:
    assert "not this device" in ask(listener, "wipe", confirm="another")["error"]
    learned = device.state / "rounds" / "1"
    learned.mkdir(parents=True)
    before = data(listener, "status")
    asked: dict[str, Any] = {"confirm": "rig", "transaction": "w"}
    gone = data(listener, "wipe", **asked)
    assert (gone["samples"], gone["models"] > 1) == (before["samples"], True)
    after = data(listener, "status")
    assert after["evicted"] == before["samples"]
    assert not (device.state / "checkpoints").exists()
    assert not (device.state / "exports").exists()
    feed(listener, 60)
    assert not learned.exists()
    assert data(listener, "wipe", **asked) == gone, "the same answer, and nothing is erased again"
    wait_until(lambda: data(listener, "status")["samples"] == before["samples"] + 60)
    assert data(listener, "train", steps=20)["verdict"] is not None


@pytest.mark.slow
def test_pauses_hold_across_restarts(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, STREAM, training=ON_COMMAND)
    device.state.mkdir()
    (device.state / "config.set.json").write_text('{"training.steps": -5, "mqtt.host": "nowhere"}')
    with running(device, broker.port) as listener:
        told = device.log.read_text(encoding="utf-8")
        assert told.count("config_set_ignored") == 1, "and it keeps no device down"
        feed(listener, 10)
        assert data(listener, "pause", what="serving") == {"paused": ["serving"]}
        feed(listener, 100, wait=False)
        assert data(listener, "pause", what="training")["paused"] == ["serving", "training"]
        wait_until(lambda: data(listener, "status")["samples"] == 110)
        device.stop(signal.SIGTERM)
        births = len(listener.messages["status"])
        device.start()
        listener.wait(lambda: any(s["state"] == "online" for s in listener.messages["status"][births:]), 60)
        status = data(listener, "status")
        assert (status["samples"], status["on_hold"]) == (110, ["serving", "training"])
        assert len(listener.messages["predictions"]) == 10
        assert data(listener, "resume", what="serving")["paused"] == ["training"]
        feed(listener, 10, wait=False)
        listener.wait(lambda: len(listener.messages["predictions"]) == 20, 60)
        assert data(listener, "resume") == {"paused": []}
        assert listener.messages["state/training"][-1]["on_hold"] is False


@pytest.mark.slow
def test_a_run_that_was_asked_for_is_answered_after_a_kill(broker: Broker, tmp_path: Path) -> None:
    device = Device(
        tmp_path, broker.port, STREAM, training=ON_COMMAND | {"checkpoint_every": 100}, gate=LENIENT
    )
    with running(device, broker.port) as listener:
        feed(listener, 200)
        asked = json.dumps({"transaction": "t", "steps": 900})
        listener.publish("edged/rig/request/train", asked)
        wait_until((device.state / "checkpoints" / "2").exists, 60)
        data(listener, "pause")
        device.stop(signal.SIGKILL)
        device.start()
        listener.wait(lambda: HELD_RUN in listener.messages["state/training"][-1]["waiting_for"], 60)
        assert len(listener.events("training_started")) == 1, "a paused device does not train"
        data(listener, "resume")
        listener.publish("edged/rig/request/train", asked)
        listener.wait(lambda: any(a["state"] == "successful" for a in answers(listener, "train", "t")), 90)
        assert [run["trigger"] for run in listener.events("training_started")] == ["command", "resume"]
        final = ask(listener, "train", transaction="t", steps=900)
        assert final["data"]["steps"] == 900
        assert len(listener.events("training_started")) == 2, "once and no more"
