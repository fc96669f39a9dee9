"""The audit log of a running device: who changed what, when, from which data, judged by which test."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.signing import new_pair, sign_command
from tests.commands import Answer, edged
from tests.device.commands.test_commands import LENIENT, ON_COMMAND, STREAM, feed
from tests.running_device import Device, running
from tests.steered import answers, ask, conform, data

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker
    from tests.running_device import Listener

pytestmark = pytest.mark.timeout(300)
PATIENT = "ward-7-bed-3"


def audit(device: Device, *options: str) -> Answer:
    """`edged audit CONFIG`, whatever its exit code."""
    return edged("audit", device.path, *options)


def log_of(device: Device) -> list[dict[str, Any]]:
    """All entries, verified."""
    done = audit(device, "--json")
    assert done.code == 0, done.err
    return list(json.loads(done.out)["log"])


@pytest.mark.slow
def test_who_changed_what_is_in_the_log_and_nothing_personal(broker: Broker, tmp_path: Path) -> None:
    public = new_pair(tmp_path / "boss.key")
    device = Device(
        tmp_path, broker.port, STREAM | {"id": "id"}, training=ON_COMMAND, gate=LENIENT,
        commands={"keys": [str(public)], "require_signed": ["rollback"]},
    )  # fmt: skip
    with running(device, broker.port) as listener:
        feed(listener, 200, PATIENT)
        listener.send("sensors/" + PATIENT, {"x": [0.123456789, 1, 2], "id": PATIENT + "-sample"})
        data(listener, "label", id=PATIENT + "-sample", label=1)
        promoted = data(listener, "train", transaction="t", steps=60)["verdict"]["promoted"]
        assert promoted == 2
        ask(listener, "status")
        assert ask(listener, "rollback")["status"] == "error"
        signed = sign_command(
            "rollback", "rig", {}, tmp_path / "boss.key", now=time.time(), transaction="back"
        )
        listener.publish("edged/rig/request/rollback", signed)
        listener.wait(lambda: answers(listener, "rollback", "back"), 60)
        change_settings(listener)
        listener.wait(
            lambda: any((m["audit"] or {}).get("seq") == 15 for m in listener.messages["metrics"]), 60
        )
        conform(listener)
        head = listener.messages["metrics"][-1]["audit"]
        assert data(listener, "status")["audit"] == head
        assert device.cli("status", str(device.path))["audit"] == head
        log = log_of(device)
        device.stop(signal.SIGKILL)
        device.start()
        data(listener, "wipe", what=["samples", "models"], confirm="rig")
        assert device.stop() == 0

    assert [entry["seq"] for entry in log] == list(range(1, len(log) + 1))
    told = [(entry["what"], entry.get("command")) for entry in log]
    assert sorted(told, key=str) == sorted(
        [
            ("champion", None), ("configuration", None), ("command", "label"), ("champion", None),
            ("command", "train"), ("rollback", None), ("command", "rollback"),
            *(("command", command) for command, _ in SETTINGS),
        ],
        key=str,
    ), "neither reads nor refused commands"  # fmt: skip
    swap = next(entry for entry in log if entry.get("after") == 2)
    assert (swap["before"], swap["trigger"], swap["run"], swap["source"]) == (1, "command", 1, "training")
    assert swap["data"]["first_offset"] < swap["data"]["last_offset"] <= 201
    assert swap["verdict"]["accepted"]
    assert swap["verdict"]["numbers"]
    commands = {entry["command"]: entry for entry in log if entry["what"] == "command"}
    assert commands["rollback"]["who"] == {"via": "mqtt", "key": "boss.key.pub"}
    assert commands["rollback"]["result"] == {"from": 2, "to": 1}
    assert commands["train"]["who"] == {"via": "mqtt"}
    assert commands["train"]["request"] == {"steps": 60}
    assert commands["train"]["result"]["run"] == 1
    check_settings(log)
    keys = next(entry for entry in log if entry["what"] == "configuration")["after"]["command_keys"]
    assert len(keys["boss.key.pub"]) == 16
    assert commands["label"]["request"] == {}

    later = log_of(device)
    assert later[: len(log)] == log, "nothing is lost or there twice after a kill"
    wiped = [entry for entry in later if entry["what"] == "command"][-1]
    assert (wiped["command"], wiped["result"]["samples"]) == ("wipe", 201)
    started = next(entry for entry in later[len(log) :] if entry["what"] == "configuration")
    assert (started["before"]["settings"], started["after"]["settings"]) == (
        {}, {"training.steps": 77},
    )  # fmt: skip
    raw = b"".join(path.read_bytes() for path in device.state.glob("audit*"))
    assert PATIENT.encode() not in raw
    assert b"0.123456789" not in raw
    assert audit(device, "--verify", "--head", f"{head['seq']}:{head['hash']}").code == 0
    check_tampering(device, head)


SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("config.set", {"training.steps": 76, "training.every": 3600.0}),
    ("config.set", {"training.steps": 77, "training.every": None}),
    ("pause", {"what": "training"}),
    ("resume", {"what": "training"}),
    ("pin", {"version": 1}),
    ("unpin", {}),
    ("logs.level", {"level": "error"}),
    ("logs.level", {"level": "info"}),
)


def change_settings(listener: Listener) -> None:
    """Every command that changes settings."""
    for command, fields in SETTINGS:
        data(listener, command, **fields)


def check_settings(log: list[dict[str, Any]]) -> None:
    """Each of them says what there was before, and what there is after it."""
    named = {command for command, _ in SETTINGS}
    found = [
        (entry["command"], entry["before"], entry["after"]) for entry in log if entry.get("command") in named
    ]
    assert found == [
        (
            "config.set",
            {"training.steps": 50, "training.every": None},
            {"training.steps": 76, "training.every": 3600.0},
        ),
        (
            "config.set",
            {"training.steps": 76, "training.every": 3600.0},
            {"training.steps": 77, "training.every": None},
        ),
        ("pause", {"paused": []}, {"paused": ["training"]}),
        ("resume", {"paused": ["training"]}, {"paused": []}),
        ("pin", {"pinned": []}, {"pinned": [1]}),
        ("unpin", {"pinned": [1]}, {"pinned": []}),
        ("logs.level", {"level": "info"}, {"level": "error"}),
        ("logs.level", {"level": "error"}, {"level": "info"}),
    ]


def check_tampering(device: Device, head: dict[str, Any]) -> None:
    """One line and exit code 1, and the place where it broke."""
    shown = audit(device)
    assert "boss.key.pub" in shown.out
    done = audit(device, "--verify")
    assert done.code == 0
    assert "complete and unchanged" in done.out
    assert audit(device, "--verify", "--head", f"{head['seq']}:{'0' * 64}").code == 1
    assert audit(device, "--verify", "--head", "newest").code == 2
    path = device.state / "audit-1.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"steps":60', b'"steps":61'))
    done = audit(device, "--verify")
    assert done.code == 1
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "audit-1.jsonl, line " in done.err


@pytest.mark.slow
def test_commands_on_this_machine_and_a_restored_backup_are_in_the_log(
    broker: Broker, tmp_path: Path
) -> None:
    device = Device(tmp_path, broker.port, STREAM, training=ON_COMMAND, gate=LENIENT)
    with running(device, broker.port) as listener:
        feed(listener, 200)
        data(listener, "train", transaction="t", steps=60)
        device.cli("backup", str(device.path), str(tmp_path / "saved"))
        assert device.stop() == 0
    device.cli("models", str(device.path), "rollback")
    device.cli("models", str(device.path), "pin", "1")
    device.cli("restore", str(device.path), str(tmp_path / "saved"), "--replace")
    device.cli("wipe", str(device.path), "--all", "--yes")
    log = log_of(device)
    local = [entry for entry in log if entry.get("who", {}).get("via") == "command line"]
    assert [(entry["command"], entry["state"]) for entry in local] == [
        ("models rollback", "successful"), ("models pin", "successful"), ("restore", "executing"),
        ("restore", "successful"), ("wipe", "executing"), ("wipe", "successful"),
    ]  # fmt: skip
    assert (local[1]["before"], local[1]["after"]) == ({"pinned": []}, {"pinned": [1]})
    assert local[-1]["result"]["files"] > 0
    assert [entry["after"] for entry in log if entry["what"] in ("champion", "rollback")] == [1, 2, 1]
    with running(device, broker.port):
        assert device.stop() == 0
    assert log_of(device)[: len(log)] == log, "a state that begins anew continues the log"
    assert log_of(device)[-1]["what"] in ("champion", "configuration")
