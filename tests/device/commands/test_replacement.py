"""The command `config.replace`: another configuration file, or the one before it."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from edged.device.commands.replacement import MAX_STARTS, ConfigFile
from edged.errors import RefusedError, StorageError
from edged.signing import new_pair, sign_command
from edged.storage.journal.audit_log import read_audit
from tests.commands import edged
from tests.device.several.plant import Plant, feed, ids, plant_running
from tests.running_device import Device, Listener, running
from tests.storage.disks import PowerCutError, TestedDisk, faults

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto

OLD, NEW = b"old: 1\n", b"new: 1\n"
STREAM: dict[str, Any] = {"features": 3, "classes": 2, "label": "y"}


# ---- the file ----------------------------------------------------------------------------------


def file_in(folder: Path) -> Path:
    path = folder / "edged.yaml"
    path.write_bytes(OLD)
    path.chmod(0o640)
    return path


def test_a_file_on_trial_is_accepted_and_the_old_one_kept(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    file = ConfigFile(path)
    file.put(NEW, ["b"])
    assert path.read_bytes() == NEW
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(RefusedError, match="on trial"):
        file.put(b"third: 1\n")
    file.begin_start()
    trial = file.trial
    assert trial is not None
    assert (trial.starts, trial.failing) == (1, ("b",))
    file.accept()
    assert not file.revert("late")
    assert file.problem_of(hashlib.sha256(NEW).hexdigest()) is None
    assert (tmp_path / "edged.yaml.old").read_bytes() == OLD


def test_a_file_that_fails_makes_room_for_the_old_one_with_its_reason(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    file = ConfigFile(path)
    file.put(NEW)
    file.begin_start()
    assert file.revert("no such bundle")
    assert path.read_bytes() == OLD
    ConfigFile(path).begin_start()
    assert ConfigFile(path).problem_of(hashlib.sha256(NEW).hexdigest()) == "no such bundle"
    ConfigFile(path).put(NEW)
    assert path.read_bytes() == NEW


def test_a_daemon_that_dies_at_every_start_gets_the_old_file_back(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    ConfigFile(path).put(NEW)
    for _ in range(MAX_STARTS):
        ConfigFile(path).begin_start()
        assert path.read_bytes() == NEW
    ConfigFile(path).begin_start()
    assert path.read_bytes() == OLD
    assert "3 attempts" in str(ConfigFile(path).problem_of(hashlib.sha256(NEW).hexdigest()))


def operations(folder: Path, *, reverted: bool) -> int:
    """How many operations of the disk a whole replacement takes."""
    disk = TestedDisk()
    replaced(ConfigFile(file_in(folder), disk=disk), reverted=reverted)
    return len(disk.operations)


def replaced(file: ConfigFile, *, reverted: bool) -> None:
    file.put(NEW)
    file.begin_start()
    if reverted:
        file.revert("it does not start")
    file.accept()


@pytest.mark.parametrize("reverted", [False, True], ids=["accepted", "reverted"])
def test_after_a_fault_at_any_step_one_of_both_files_is_there_and_counts(
    tmp_path: Path, *, reverted: bool
) -> None:
    """What the next start finds is the old file or the new one, whole, and it is never on trial for ever."""
    (tmp_path / "counted").mkdir()
    for fault in faults(operations(tmp_path / "counted", reverted=reverted)):
        folder = tmp_path / str(fault)
        folder.mkdir()
        path = file_in(folder)
        try:
            replaced(ConfigFile(path, disk=fault.disk()), reverted=reverted)
        except (PowerCutError, StorageError):
            assert path.read_bytes() in (OLD, NEW), fault
        again = ConfigFile(path)
        again.begin_start()
        again.accept()
        found = path.read_bytes()
        assert found in (OLD, NEW), fault
        assert again.trial is None, fault
        told = again.problem_of(hashlib.sha256(NEW).hexdigest())
        assert (told is None) == (found == NEW), fault
        again.put(b"third: 1\n")
        assert path.read_bytes() == b"third: 1\n", fault


# ---- one stream --------------------------------------------------------------------------------


def send(listener: Listener, values: dict[str, Any] | str, transaction: str) -> None:
    text = values if isinstance(values, str) else yaml.safe_dump(values)
    listener.publish(
        f"{listener.root}/request/config.replace", json.dumps({"transaction": transaction, "config": text})
    )


def ended(listener: Listener, transaction: str) -> dict[str, Any]:
    """Wait for the last answer to a command."""

    def told() -> list[dict[str, Any]]:
        found = listener.messages["response/config.replace"]
        return [one for one in found if one["transaction"] == transaction and one["state"] != "accepted"]

    listener.wait(told, 60)
    return told()[-1]


@pytest.mark.slow
def test_a_device_runs_with_the_new_file_or_with_the_old_one(broker: Mosquitto, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, STREAM)
    old, wider = (
        device.path.read_bytes(),
        device.values | {"stream": {**device.values["stream"], "features": 5}},
    )
    with running(device, broker.port) as listener:
        send(listener, device.values | {"training": {"steps": 77}, "report": {"every": "200ms"}}, "one")
        assert ended(listener, "one")["state"] == "successful"
        config = listener.request("config.get")["data"]["values"]
        assert (config["training"]["steps"], config["report"]["every"]) == (77, 0.2)
        assert (tmp_path / "edged.yaml.old").read_bytes() == old
        assert not (tmp_path / "edged.yaml.trial").exists()
        good = device.path.read_bytes()
        # A mistake is found before anything is written; a model of other features only by the start.
        send(listener, device.values | {"training": {"stepz": 1}}, "two")
        assert "edged.yaml:" in ended(listener, "two")["error"]
        send(listener, wider, "three")
        answer = ended(listener, "three")
        assert answer["state"] == "failed"
        assert "the file before it is in force" in answer["error"]
        assert device.path.read_bytes() == good
        assert listener.request("config.get")["data"]["values"]["stream"]["features"] == 3
        # The same command again is answered and not carried out again.
        starts = len(listener.events("started"))
        before = len(listener.messages["response/config.replace"])
        send(listener, device.values | {"training": {"steps": 77}, "report": {"every": "200ms"}}, "one")
        listener.wait(lambda: len(listener.messages["response/config.replace"]) > before)
        assert listener.messages["response/config.replace"][-1]["state"] == "successful"
        assert len(listener.events("started")) == starts
        assert "transaction" in listener.request("config.replace", config="{}")["error"]
    entries = [logged.entry for logged in read_audit(device.state, running=False)[0]]
    first = next(entry for entry in entries if entry.command == "config.replace")
    assert first.state == "successful"
    assert first.request == {}
    assert first.before == {"configuration": hashlib.sha256(old).hexdigest()}
    assert first.after == {"configuration": hashlib.sha256(good).hexdigest()}


@pytest.mark.slow
@pytest.mark.parametrize("usable", [True, False], ids=["usable", "unusable"])
def test_a_daemon_that_is_killed_meanwhile_answers_after_its_next_start(
    broker: Mosquitto, tmp_path: Path, *, usable: bool
) -> None:
    device = Device(tmp_path, broker.port, STREAM)
    features = 3 if usable else 5
    values = device.values | {
        "stream": {**device.values["stream"], "features": features}, "training": {"steps": 77},
    }  # fmt: skip
    with running(device, broker.port) as listener:
        send(listener, values, "t")
        listener.wait(lambda: listener.messages["response/config.replace"])
        device.stop(signal.SIGKILL)
        device.start()
        assert ended(listener, "t")["state"] == ("successful" if usable else "failed")
        steps = listener.request("config.get")["data"]["values"]["training"]["steps"]
        assert (steps == 77) == usable


@pytest.mark.slow
def test_an_unsigned_file_changes_nothing_about_trust(broker: Mosquitto, tmp_path: Path) -> None:
    new_pair(tmp_path / "key")
    device = Device(tmp_path, broker.port, STREAM, commands={"keys": ["key.pub"], "require_signed": ["wipe"]})
    changes: dict[str, tuple[str, Any]] = {
        "commands.keys": ("commands", {"keys": [], "require_signed": []}),
        "commands.require_signed": ("commands", {"keys": ["key.pub"], "require_signed": ["train"]}),
        "mqtt.username": ("mqtt", {**device.values["mqtt"], "username": "other"}),
        "web": ("web", {"listen": "127.0.0.1:0"}),
        "storage.dir": ("storage", {"dir": "elsewhere"}),
        "install": ("install", {}),
    }
    with running(device, broker.port) as listener:
        for number, (key, (section, value)) in enumerate(changes.items()):
            send(listener, device.values | {section: value}, f"t{number}")
            answer = ended(listener, f"t{number}")
            assert (answer["state"], key in answer["error"]) == ("refused", True), answer
        text = yaml.safe_dump(
            device.values | {"commands": {"keys": ["key.pub"], "require_signed": ["train"]}}
        )
        listener.publish(
            "edged/rig/request/config.replace",
            sign_command(
                "config.replace", "rig", {"config": text}, tmp_path / "key", now=time.time(),
                transaction=os.urandom(8).hex(), root="edged",
            ),
        )  # fmt: skip
        listener.wait(lambda: listener.messages["response/config.replace"][-1]["state"] == "successful", 60)
        assert "must be signed" in listener.request("train")["error"]


@pytest.mark.slow
def test_the_command_line_sends_a_file(broker: Mosquitto, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, STREAM)
    new = tmp_path / "new.yaml"
    new.write_text(yaml.safe_dump(device.values | {"training": {"steps": 77}}))
    with running(device, broker.port):
        url = f"mqtt://127.0.0.1:{broker.port}"
        answer = edged("ctl", "--broker", url, "rig", "config.replace", f"config=@{new}", "--json")
        assert answer.json["state"] == "successful", answer.err
        assert device.path.read_bytes() == new.read_bytes()


# ---- several streams ---------------------------------------------------------------------------


@pytest.mark.slow
def test_streams_follow_the_new_file_and_return_to_the_old_one_if_one_of_them_fails(
    tmp_path: Path, broker: Mosquitto
) -> None:
    plant = Plant(tmp_path, broker.port, "ab")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "bundle.json").write_text("{")
    with plant_running(plant, broker.port) as listener:
        plant.stream("b")["gate"] = {"min_gain": 0.3}
        plant.values["streams"].append({"name": "d", "stream": {"topic": "sensors/d"}})
        send(listener, plant.values, "one")
        assert ended(listener, "one")["state"] == "successful"
        good = plant.path.read_bytes()
        feed(listener, "d", 10)
        listener.wait(lambda: len(ids(listener, "d")) == 10)
        plant.stream("b")["model"] = {"bundle": "broken"}
        plant.values["streams"] = plant.values["streams"][:2]
        send(listener, plant.values, "two")
        answer = ended(listener, "two")
        assert answer["state"] == "failed"
        assert "b: " in answer["error"]
        assert plant.path.read_bytes() == good
        for name in "abd":
            feed(listener, name, 5, first=20)
        listener.wait(lambda: all(ids(listener, name)[-1:] == [f"{name}-24"] for name in "abd"))
        # A stream that was not touched went on; the device stayed connected.
        assert [e["event"] for e in listener.messages["a/events"]].count("started") == 1
        assert [s["state"] for s in listener.messages["status"]].count("online") == 1


@pytest.mark.slow
def test_a_device_of_several_streams_restarts_for_its_own_sections(tmp_path: Path, broker: Mosquitto) -> None:
    plant = Plant(tmp_path, broker.port, "ab")
    with plant_running(plant, broker.port) as listener:
        send(listener, plant.values | {"discovery": {"name": "Plant"}}, "one")
        assert ended(listener, "one")["state"] == "successful"
        feed(listener, "a", 5)
        listener.wait(lambda: len(ids(listener, "a")) == 5)
        assert [s["state"] for s in listener.messages["status"]].count("online") == 2
