"""`edged ctl` against a running device, and what it says when there is none."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.table import Table

from edged.cli.ctl import DeviceWatch
from edged.mqtt.topics import matches
from tests.commands import COMMAND, edged
from tests.device.commands.test_commands import ON_COMMAND, STREAM, feed
from tests.mqtt.oldbroker import OldBroker
from tests.running_device import Device, running

if TYPE_CHECKING:
    from tests.mosquitto import Mosquitto as Broker


@pytest.mark.slow
def test_a_person_and_a_program_ask_a_device(broker: Broker, tmp_path: Path) -> None:
    device = Device(tmp_path, broker.port, STREAM, training=ON_COMMAND)
    url = f"--broker=mqtt://127.0.0.1:{broker.port}"
    with running(device, broker.port) as listener:
        feed(listener, 100)
        watching = subprocess.Popen(
            [*COMMAND, "ctl", url, "watch", "rig", "--seconds", "60", "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        done = edged("ctl", url, "rig", "train", "steps=30", "--json")
        assert (done.code, done.json["state"], done.json["data"]["steps"]) == (0, "successful", 30)
        again = edged("ctl", url, "rig", "train", "steps=1").out
        assert re.search(r"verdict +(accepted|refused): \S", again), again
        refused = edged("ctl", url, "rig", "wipe", "confirm=other")
        assert (refused.code, "that is not this device" in refused.problem) == (3, True)
        shown = edged("ctl", url, "rig", "capabilities")
        assert shown.code == 0
        assert all(word in shown.out for word in ("drift.reset", "learning_rate", "classify"))
        assert "training.steps" in edged("ctl", url, "rig", "config.set", "training.steps=60").out
        sent = edged("ctl", url, "rig", "ping", "--no-wait")
        assert (sent.code, sent.out) == (0, "")
        listener.wait(lambda: listener.messages["response/ping"])
        assert watching.stdout is not None
        for line in watching.stdout:
            known = json.loads(line)
            assert known["device"] == "rig"
            if known.get("samples") == 100 and "training_finished" in known["events"]:
                break
        else:
            pytest.fail("it was not told of")
        watching.kill()
        watching.wait(10)
        watching.stdout.close()
        assert "online" in edged("ctl", url, "watch", "--seconds", "1").out


@pytest.mark.slow
def test_a_command_is_signed_where_a_device_asks_for_that(broker: Broker, tmp_path: Path) -> None:
    key, stranger = tmp_path / "key", tmp_path / "stranger"
    for name in (key, stranger):
        assert edged("keys", "new", "-o", name).code == 0
    rules = {"keys": [f"{key}.pub"], "require_signed": "all"}
    mqtt = {"host": "127.0.0.1", "port": broker.port, "root": "plant/b"}
    device = Device(tmp_path, broker.port, STREAM, training=ON_COMMAND, commands=rules, mqtt=mqtt)
    url = f"--broker=mqtt://127.0.0.1:{broker.port}/plant/b"
    with running(device, broker.port, "plant/b/rig"):
        assert "must be signed" in edged("ctl", url, "rig", "ping").problem
        assert "does not fit" in edged("ctl", url, "rig", "ping", "--sign", stranger).problem
        assert edged("ctl", url, "rig", "ping", "--sign", key, "--json").json["data"]["pong"]
        answer = edged("ctl", url, "rig", "config.set", "training.steps=60", "--sign", key, "--json").json
        assert answer["data"]["desired"] == {"training.steps": 60}
    assert edged("ctl", url, "rig", "ping", "--sign", tmp_path / "none").code == 2


@pytest.mark.parametrize("dotted", [True, False], ids=["as sent", "as RabbitMQ delivers it"])
def test_a_device_with_dots_in_its_id_is_watched_under_its_name(dotted: bool) -> None:
    watched = DeviceWatch("plant.b/line")
    told = {
        "plant.b/line/press.7/status": {"state": "online"},
        "plant.b/line/press.7/state/model": {"version": 3},
        "plant.b/line/a.state/status": {"state": "offline"},
        "plant.b/line/press-1/response/status": {"state": "successful", "status": "ok"},
    }
    for topic, payload in told.items():
        found = topic if dotted else topic.replace(".", "/")
        assert any(matches(pattern, found) for pattern in watched.filters(None)) or not dotted
        known = watched.receive(found, json.dumps(payload).encode())
        assert (known is None) == ("response" in topic)
    shown = watched.screen(None)
    assert isinstance(shown, Table)
    names, states, models = (list(column.cells) for column in shown.columns[:3])
    assert (names, states, models) == (["a.state", "press.7"], ["offline", "online"], ["-", "3"])


def test_a_device_that_is_not_there_does_not_answer(broker: Broker) -> None:
    url = f"--broker=mqtt://127.0.0.1:{broker.port}"
    answer = edged("ctl", url, "nobody", "ping", "--timeout", "0.5")
    assert answer.code == 1
    assert answer.problem.startswith("edged: nobody ping: no answer in 0.5 s")


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("--broker", "http://x", "d", "ping"), 2, "not the address of a broker"),
        (("--broker", "mqtt://u:p@x", "d", "ping"), 2, "visible to others"),
        (("--broker", "mqtt://127.0.0.1:1", "d", "ping"), 1, "no connection"),
        (("d",), 2, "which command"),
        (("d", "train", "steps"), 2, "expected KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: tuple[str, ...], code: int, word: str) -> None:
    answer = edged("ctl", *arguments)
    assert answer.code == code
    assert word in answer.problem


@pytest.mark.slow
@pytest.mark.parametrize("words", [b"\x20\x02\x00\x01", b""])
def test_a_broker_without_mqtt_5_is_spoken_to_at_3_1_1(broker: Broker, tmp_path: Path, words: bytes) -> None:
    """Some refuse with a code, others hang up."""
    device = Device(tmp_path, broker.port, STREAM, training=ON_COMMAND)
    with closing(OldBroker(broker.port, words=words)) as old, running(device, broker.port):
        url = f"--broker=mqtt://127.0.0.1:{old.port}"
        assert edged("ctl", url, "rig", "config.get", "--json").json["status"] == "ok"
        assert "online" in edged("ctl", url, "watch", "--seconds", "1").out


@pytest.mark.parametrize("words", [b"\x20\x02\x00\x01", b""])
def test_a_broker_that_speaks_neither_is_named_as_such(words: bytes) -> None:
    with closing(OldBroker(0, refuses=(4, 5), words=words)) as old:
        answer = edged("ctl", f"--broker=mqtt://127.0.0.1:{old.port}", "rig", "ping")
    assert answer.code == 1
    assert "no version of MQTT that we speak is accepted" in answer.problem
