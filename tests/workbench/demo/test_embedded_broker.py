from __future__ import annotations

import socket
from pathlib import Path

import pytest

from edged.config import MqttConfig
from edged.errors import BrokerError, UnavailableError
from edged.mqtt.client.session import Session
from edged.workbench.demo import broker as broker_module
from edged.workbench.demo.broker import HOST, Kind, available, embedded_broker, free_port
from tests.mosquitto import Mosquitto
from tests.mqtt.inbox import PATIENCE, Inbox


@pytest.mark.parametrize("kind", ["mosquitto", "amqtt"])
def test_messages_go_through_it_and_it_leaves_nothing_behind(kind: Kind) -> None:
    with embedded_broker(kind) as broker:
        assert broker.name == kind
        config = MqttConfig(host=broker.host, port=broker.port, protocol=broker.protocol)
        session = Session(config, client_id="me")
        inbox = Inbox(session)
        session.subscribe(["t"], 1, inbox)
        session.start()
        assert session.wait_ready(PATIENCE)
        for number in range(300):
            session.publish("t", b"%d" % number, qos=1)
        assert inbox.payloads(300) == [b"%d" % number for number in range(300)]
        assert session.protocol == broker.protocol
        session.stop()
        port = broker.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port))


def test_mosquitto_is_taken_where_it_is_installed() -> None:
    assert available() == "mosquitto"


def test_without_any_broker_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(broker_module, "_SBIN", "")
    assert available() == "amqtt"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="apt-get install mosquitto") as caught:
        available()
    assert caught.value.exit_code == 4


def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="did not start"):
        Mosquitto(tmp_path, free_port(), ["no_such_option true"]).start()


def test_an_error_in_the_block_ends_the_broker_too() -> None:
    ports = []

    def fail() -> None:
        with embedded_broker() as broker:
            ports.append(broker.port)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, ports[0]))
