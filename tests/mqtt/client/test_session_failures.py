"""The session with a real broker, while things go wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from edged.config import MqttConfig
from edged.errors import ConfigError
from edged.mqtt.client.session import Session
from edged.workbench.demo.broker import HOST, free_port
from tests.mosquitto import Amqtt, Mosquitto
from tests.mqtt.inbox import PATIENCE, ConnectionGates, Gate, Inbox
from tests.mqtt.oldbroker import OldBroker

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.mqtt.conftest import Connect
    from tests.mqtt.inbox import Log

ROOT = Path(__file__).parents[3]
LASTING = ("allow_anonymous true", "persistence true", "autosave_interval 1", "autosave_on_changes true")


@pytest.fixture
def holder(broker: Mosquitto) -> Iterator[subprocess.Popen[str]]:
    """A client in another process that acknowledges nothing, with the client id `edge`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.mqtt.holder", str(broker.port), "edge"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    with process:
        assert _line(process) == "ready"
        yield process
        process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_after_kill_9_the_same_messages_come_again_with_dup_and_the_same_packet_ids(
    holder: subprocess.Popen[str], connect: Connect
) -> None:
    sender = connect("sender")
    for number in range(200):
        sender.publish("held/data", b"%d" % number, qos=1)
    before = [_line(holder) for _ in range(200)]
    holder.kill()
    holder.wait()
    inbox = Inbox()
    session = connect("edge", ready=False, subscribe=("held/data", inbox))
    after = inbox.wait(200)
    assert [f"{delivery.mid} {delivery.payload.decode()}" for delivery in after] == before
    assert [line.split()[1] for line in before] == [str(number) for number in range(200)]
    assert all(delivery.dup for delivery in after)
    session.ack(after)
    sender.publish("held/data", b"new", qos=1)
    [new] = inbox.wait(201)[200:]
    assert (new.payload, new.dup) == (b"new", False)


def test_the_will_is_published_when_the_process_is_killed(
    holder: subprocess.Popen[str], connect: Connect
) -> None:
    inbox = Inbox()
    connect("observer", subscribe=("held/status", inbox))
    holder.kill()
    assert inbox.payloads(1) == [b"gone"]


def test_what_was_not_acknowledged_comes_again_after_drop(connect: Connect) -> None:
    inbox, gates = Inbox(), ConnectionGates()
    session = connect("edge", listener=gates, subscribe=("t", inbox))
    gates.made.wait()
    sender = connect("sender")
    for number in range(100):
        sender.publish("t", b"%d" % number, qos=1)
    first = inbox.wait(100)
    session.ack(first[:40])
    session.drop()
    gates.made.wait()
    again = inbox.wait(160)[100:]
    assert [delivery.mid for delivery in again] == [delivery.mid for delivery in first[40:]]
    assert [delivery.payload for delivery in again] == [delivery.payload for delivery in first[40:]]
    assert all(delivery.dup for delivery in again)
    assert {delivery.epoch for delivery in again} == {2}


def test_acknowledgements_of_an_earlier_connection_are_skipped(connect: Connect) -> None:
    inbox, gates = Inbox(), ConnectionGates()
    session = connect("edge", listener=gates, subscribe=("t", inbox))
    gates.made.wait()
    sender = connect("sender")
    for number in range(10):
        sender.publish("t", b"%d" % number, qos=1)
    old = inbox.wait(10)
    for round_ in (2, 3):
        session.drop()
        gates.made.wait()
        inbox.wait(10 * round_)
        session.ack(old)
    assert [delivery.payload for delivery in inbox.wait(30)[20:]] == [delivery.payload for delivery in old]


def test_a_broker_that_restarts_finds_us_again(
    make_broker: MakeBroker, make_session: Connect, log: Log
) -> None:
    broker = make_broker()
    gates, inbox = ConnectionGates(), Inbox()
    session = make_session("edge", port=broker.port, listener=gates)
    session.subscribe(["t/#"], 1, inbox)
    gates.made.wait()
    broker.kill()
    gates.lost.wait()
    assert not session.connected
    assert session.publish("t/q1", b"kept", qos=1)
    assert session.publish("t/q0", b"kept, too")
    assert session.pending == 1
    broker.start()
    gates.made.wait()
    assert sorted(inbox.payloads(2)) == [b"kept", b"kept, too"]
    assert log.wait("mqtt_lost")["level"] == "warning"
    assert len(log.named("mqtt_connected")) == 2


def test_a_broker_that_keeps_sessions_over_a_restart_delivers_the_rest(
    make_broker: MakeBroker, make_session: Connect
) -> None:
    directory = make_broker().directory
    broker = make_broker(*LASTING, f"persistence_location {directory}/")
    inbox, gates = Inbox(), ConnectionGates()
    session = make_session("edge", port=broker.port, listener=gates, subscribe=("t", inbox))
    gates.made.wait()
    sender = make_session("sender", port=broker.port)
    for number in range(50):
        sender.publish("t", b"%d" % number, qos=1)
    first = inbox.wait(50)
    broker.stop()
    broker.start()
    gates.made.wait()
    again = inbox.wait(100)[50:]
    assert [delivery.payload for delivery in again] == [delivery.payload for delivery in first]
    session.ack(again)


def test_a_broker_that_hangs_is_left(broker: Mosquitto, connect: Connect, log: Log) -> None:
    gates = ConnectionGates()
    connect("edge", config={"keepalive": 1}, listener=gates)
    gates.made.wait()
    os.kill(broker.pid, signal.SIGSTOP)
    gates.lost.wait()
    os.kill(broker.pid, signal.SIGCONT)
    gates.made.wait()
    assert log.wait("mqtt_lost")["reason"] == "Keep alive timeout"


def test_publishing_while_offline_is_bounded(log: Log) -> None:
    session = Session(MqttConfig(host=HOST, port=free_port()), client_id="edge", backlog=100)
    session.start()
    assert [session.publish("t", b"", qos=1) for _ in range(150)].count(True) == 100
    assert all(session.publish("t", b"") for _ in range(150))
    assert session.pending == 100
    assert session.dropped == 50
    assert "broker listen" in str(log.wait("mqtt_unreachable", reason="connection refused")["remedy"])
    session.stop()


def test_what_waited_is_sent_when_the_broker_comes_up(make_broker: MakeBroker, make_session: Connect) -> None:
    broker = make_broker()
    broker.stop()
    session = make_session("edge", port=broker.port, ready=False, backlog=100)
    for number in range(150):
        session.publish("t", b"%d" % number, qos=number % 2)
    broker.start()
    assert session.wait_ready(PATIENCE)
    done = Gate()
    session.publish("after", b"", qos=1, on_done=done)
    done.wait()
    assert (session.pending, session.dropped) == (0, 0)


def test_a_wrong_password_is_said_once_and_a_corrected_file_is_read(
    make_broker: MakeBroker, make_session: Connect, log: Log, tmp_path: Path
) -> None:
    passwords = tmp_path / "passwords"
    tool = ["mosquitto_passwd", "-b", "-c", str(passwords), "edge", "right"]
    subprocess.run(tool, check=True, capture_output=True)
    broker = make_broker("allow_anonymous false", f"password_file {passwords}")
    secret = tmp_path / "secret"
    secret.write_text("wrong\n")
    config = {"username": "edge", "password_file": secret}
    session = make_session("edge", port=broker.port, ready=False, config=config)
    refused = log.wait("mqtt_refused", level="warning")
    assert refused["reason"] == "Not authorized"
    assert "mqtt.password_file" in str(refused["remedy"])
    log.wait("mqtt_refused", level="debug")
    secret.unlink()
    assert "cannot read the password" in str(log.wait("mqtt_failed")["reason"])
    secret.write_text("right\nsecond line\n")
    assert session.wait_ready(PATIENCE)
    assert len(log.named("mqtt_refused", level="warning")) == 1


def test_a_message_that_the_broker_forbids_is_named(
    make_broker: MakeBroker, make_session: Connect, log: Log, tmp_path: Path
) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite allowed/#\n")
    broker = make_broker("allow_anonymous true", f"acl_file {rules}")
    session = make_session("edge", port=broker.port)
    done = Gate()
    session.publish("forbidden", b"", qos=1, on_done=done)
    done.wait()
    assert log.wait("mqtt_publish_refused", topic="forbidden")["reason"] == "Not authorized"


def test_a_subscription_that_the_broker_forbids_is_named(make_session: Connect, log: Log) -> None:
    """Mosquitto forbids none, so this broker is written down packet by packet."""
    with socket.create_server((HOST, 0)) as server:
        port = int(server.getsockname()[1])
        session = make_session("edge", port=port, ready=False, subscribe=("forbidden/#", Inbox()))
        client, _ = server.accept()
        with client:
            client.recv(4096)
            client.sendall(b"\x20\x03\x00\x00\x00")
            subscribe = client.recv(4096)
            client.sendall(b"\x90\x04" + subscribe[2:4] + b"\x00\x87")
            assert log.wait("mqtt_subscription_refused", filter="forbidden/#")["reason"] == "Not authorized"
            assert session.wait_ready(PATIENCE)
            session.stop(0.5)


def test_a_message_beyond_the_brokers_limit_is_not_tried_for_ever(
    make_broker: MakeBroker, make_session: Connect, log: Log
) -> None:
    broker = make_broker("allow_anonymous true", "max_packet_size 1000")
    session = make_session("edge", port=broker.port)
    done = Gate()
    assert session.publish("t", bytes(2000), qos=1, on_done=done)
    done.wait()
    assert session.publish("t", bytes(500), qos=1, on_done=done)
    done.wait()
    assert session.dropped == 1
    assert log.wait("mqtt_too_large", topic="t")["limit"] == 1000
    assert session.epoch == 1


def test_a_client_with_our_name_is_reported(connect: Connect, log: Log) -> None:
    first = connect("twin")
    second = connect("twin")
    assert "mqtt.client_id" in str(log.wait("mqtt_lost")["remedy"])
    first.stop()
    second.stop()


def test_an_error_in_a_sink_costs_the_connection_but_not_the_message(connect: Connect, log: Log) -> None:
    inbox = Inbox()
    failures = iter([True])

    def sink(delivery: object) -> None:
        if next(failures, False):
            raise ValueError("not now")
        inbox(delivery)  # type: ignore[arg-type]

    session = connect("edge")
    session.subscribe(["t"], 1, sink)
    assert session.wait_ready(PATIENCE)
    session.publish("t", b"precious", qos=1)
    assert inbox.payloads(1) == [b"precious"]
    assert log.wait("mqtt_failed")["exc_info"]


def test_messages_of_an_old_subscription_are_put_aside(connect: Connect, log: Log) -> None:
    connect("edge", subscribe=("old/#", Inbox())).stop()
    session = connect("edge", subscribe=("new/#", Inbox()))
    done = Gate()
    connect("sender").publish("old/topic", b"", qos=1, on_done=done)
    done.wait()
    assert log.wait("mqtt_unexpected_topic")["topic"] == "old/topic"
    session.drop()
    session.publish("new/topic", b"", qos=1, on_done=done)
    done.wait()
    assert len(log.named("mqtt_unexpected_topic")) == 1


def test_a_broker_that_never_answers_mqtt_5_is_spoken_to_in_3_1_1(
    tmp_path: Path, make_session: Connect, log: Log
) -> None:
    """A real broker of that kind: it takes the property length for the client id's and waits."""
    broker = Amqtt(tmp_path, free_port())
    broker.start()
    inbox = Inbox()
    session = make_session("edge", port=broker.port, ready=False, subscribe=("t", inbox))
    assert session.publish("t", b"waited", qos=1)
    assert session.wait_ready(PATIENCE)
    assert session.protocol == "3.1.1"
    session.ack(inbox.wait(1))
    assert session.publish("t", b"new", qos=1)
    assert inbox.payloads(2) == [b"waited", b"new"]
    assert len(log.named("mqtt_fallback")) == 1
    session.stop()
    broker.stop()


def test_a_broker_that_refuses_mqtt_5_is_spoken_to_in_3_1_1_from_then_on(
    broker: Mosquitto, make_session: Connect, log: Log
) -> None:
    old = OldBroker(broker.port)
    gates, inbox = ConnectionGates(), Inbox()
    session = make_session("edge", port=old.port, listener=gates)
    session.subscribe(["t"], 1, inbox)
    gates.made.wait()
    assert session.protocol == "3.1.1"
    session.drop()
    gates.made.wait()
    session.publish("t", b"hello", qos=1)
    assert inbox.payloads(1) == [b"hello"]
    assert len(log.named("mqtt_fallback")) == 1
    assert not log.named("mqtt_refused")
    session.stop()
    old.close()


def test_a_certificate_of_somebody_else_is_refused_in_words(
    make_broker: MakeBroker, make_session: Connect, log: Log
) -> None:
    keys = Path(__file__).parent / "tls"
    lines = [f"certfile {keys / 'server.pem'}", f"keyfile {keys / 'server.key'}"]
    broker = make_broker("allow_anonymous true", *lines)
    make_session("edge", port=broker.port, ready=False, config={"host": "localhost", "tls": {}})
    reason = str(log.wait("mqtt_unreachable")["reason"])
    assert reason.startswith("certificate refused")


def test_a_port_that_speaks_no_tls_is_named(broker: Mosquitto, make_session: Connect, log: Log) -> None:
    make_session("edge", port=broker.port, ready=False, config={"host": "localhost", "tls": {}})
    assert f"{broker.port} speak TLS" in str(log.wait("mqtt_unreachable")["remedy"])


def test_keys_that_cannot_be_used_are_a_configuration_error(tmp_path: Path) -> None:
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    config = MqttConfig.model_validate({"tls": {"ca_file": broken}})
    with pytest.raises(ConfigError, match=r"mqtt\.tls"):
        Session(config, client_id="edge")


def test_an_unknown_host_is_named(make_session: Connect, log: Log) -> None:
    make_session("edge", port=1883, ready=False, config={"host": "no-such-host.invalid", "insecure": True})
    assert "no-such-host.invalid" in str(log.wait("mqtt_unreachable")["reason"])
