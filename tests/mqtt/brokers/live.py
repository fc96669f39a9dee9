"""A device at brokers that others have written: `make test-brokers`.

`EDGED_BROKERS` names the directory in which npm has installed aedes. What docs/mqtt.md says of each broker
is what this finds.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as mqtt
import pytest

from edged.workbench.demo.broker import HOST, free_port
from tests.commands import edged
from tests.mosquitto import Amqtt, Mosquitto, Process
from tests.running_device import Device, Listener

if TYPE_CHECKING:
    from edged.mqtt.client.reconnect import Protocol

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(600)]

ROWS = 5000
COMMANDS = ("ping", "status", "config.get")
DEVICE = "rig.7"  # of which RabbitMQ makes rig/7


class Aedes(Process):
    """aedes, in Node.js."""

    name = "aedes"
    protocol = "3.1.1"

    def command(self) -> list[str]:
        assert os.environ.get("EDGED_BROKERS"), "run `make test-brokers`, which installs aedes"
        return ["node", str(Path(__file__).with_name("aedes.mjs")), str(self.port)]


class RabbitMq(Process):
    """RabbitMQ with its MQTT plugin, as a node of its own: nothing of it is in the system's directories."""

    name = "rabbitmq"
    protocol = "3.1.1"
    start_seconds = 120.0

    def __init__(self, directory: Path, port: int) -> None:
        super().__init__(directory, port)
        self._epmd = free_port()

    def command(self) -> list[str]:
        (self.directory / "enabled").write_text("[rabbitmq_mqtt].\n", encoding="utf-8")
        (self.directory / "rabbitmq.conf").write_text(
            f"listeners.tcp = none\nmqtt.listeners.tcp.1 = {HOST}:{self.port}\nmqtt.allow_anonymous = true\n",
            encoding="utf-8",
        )
        settings = {
            "HOME": self.directory,
            "RABBITMQ_MNESIA_BASE": self.directory / "db",
            "RABBITMQ_LOG_BASE": self.directory,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": self.directory / "rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.directory / "enabled",
            "RABBITMQ_NODENAME": f"edged{self.port}@localhost",
            "RABBITMQ_DIST_PORT": free_port(),
            "ERL_EPMD_PORT": self._epmd,
            "ERL_EPMD_ADDRESS": HOST,
            "RUNNING_UNDER_SYSTEMD": 1,  # Erlang in place of the shell that starts it
        }
        named = [f"{name}={value}" for name, value in settings.items()]
        return ["env", *named, "/usr/lib/rabbitmq/bin/rabbitmq-server"]

    def kill(self) -> None:
        super().kill()
        subprocess.run(["epmd", "-port", str(self._epmd), "-kill"], check=False, capture_output=True)


def one_in_flight(directory: Path, port: int) -> Mosquitto:
    return Mosquitto(directory, port, ("allow_anonymous true", "max_inflight_messages 1"))


BROKERS: dict[str, tuple[Any, Protocol]] = {
    "mosquitto": (Mosquitto, "5"),
    "mosquitto, one in flight": (one_in_flight, "3.1.1"),
    "mosquitto, one in flight, MQTT 5": (one_in_flight, "5"),
    "aedes": (Aedes, "3.1.1"),
    "rabbitmq": (RabbitMq, "3.1.1"),
    "amqtt": (Amqtt, "3.1.1"),
}


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Process, Protocol]]:
    """A broker that runs, and the version of MQTT that it speaks."""
    make, protocol = BROKERS[request.param]
    process = make(tmp_path, free_port())
    process.start()
    yield process, protocol
    process.stop()


def test_all_samples_are_durable_and_predicted_and_commands_are_answered(
    broker: tuple[Process, Protocol], tmp_path: Path
) -> None:
    """The device and `edged ctl` begin with MQTT 5, and fall back where the broker speaks 3.1.1 alone."""
    process, protocol = broker
    home = tmp_path / "device"
    home.mkdir()
    given = {"protocol": "3.1.1"} if isinstance(process, Mosquitto) and protocol == "3.1.1" else {}
    device = Device(
        home,
        process.port,
        {"features": 2, "classes": 2, "label": "y", "id": "id"},
        device={"id": DEVICE},
        mqtt={"host": HOST, "port": process.port} | given,
        training={"enabled": False},
    )
    version = mqtt.MQTTv5 if protocol == "5" else mqtt.MQTTv311
    url = f"--broker=mqtt://{HOST}:{process.port}"
    root = f"edged/{DEVICE.replace('.', '/') if isinstance(process, RabbitMq) else DEVICE}"
    with closing(Listener(process.port, root, version)) as listener:
        device.start()
        try:
            listener.wait(lambda: listener.messages["metrics"], 60.0)
            for i in range(ROWS):
                listener.send("sensors/a", {"id": str(i), "x": [i, 1.0], "y": i % 2})
            listener.wait(lambda: len(listener.messages["predictions"]) >= ROWS, 300.0)
            watched = edged("ctl", url, "watch", "--seconds", "3", "--json")
            answers = {
                command: edged("ctl", url, DEVICE, command, "--timeout", "20", "--json")
                for command in COMMANDS
            }
        finally:
            code = device.stop()
    assert code == 0
    assert {json.loads(line)["device"] for line in watched.out.splitlines()} == {DEVICE}
    assert {message["id"] for message in listener.messages["predictions"]} == {str(i) for i in range(ROWS)}
    assert device.cli("status", str(device.path))["samples"] == ROWS
    assert {command: answer.code for command, answer in answers.items()} == dict.fromkeys(COMMANDS, 0)
