"""MQTT over WebSocket with a real broker, with and without TLS, and the one line where there is none."""

from __future__ import annotations

import socket
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from edged.config import MqttConfig
from edged.errors import UnavailableError
from edged.mqtt.client.session import Session
from edged.mqtt.client.websocket import WebSocket
from edged.mqtt.control_client import Operator, broker_section
from edged.workbench.demo.broker import HOST, free_port
from tests.certificates import Authority
from tests.commands import edged
from tests.mqtt.inbox import PATIENCE, Inbox, Log
from tests.running_device import Device, running, wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeBroker
    from tests.mosquitto import Mosquitto
    from tests.mqtt.conftest import Connect

OVER = {"websocket": "/mqtt"}
BIG = bytes(range(256)) * 8000  # beyond what a socket takes at once; mosquitto itself then sends no further
LARGE = bytes(range(256)) * 400


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("pki"))
    authority.issue("broker")
    return authority


def with_websockets(make_broker: MakeBroker, pki: Authority | None = None) -> tuple[Mosquitto, int]:
    """A mosquitto and the port of its websockets; it wants a plain listener beside them."""
    port = free_port()
    lines = ["allow_anonymous true", f"listener {port} 127.0.0.1", "protocol websockets"]
    if pki is not None:
        files = pki.folder / "ca-broker"
        lines += [f"cafile {pki.file}", f"certfile {files}.pem", f"keyfile {files}.key"]
    broker = make_broker(*lines)
    wait_until(lambda: listens(port))
    return broker, port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
@pytest.mark.parametrize("tls", [False, True])
def test_messages_go_both_ways_and_are_acknowledged(
    pki: Authority, make_broker: MakeBroker, make_session: Connect, tls: bool, protocol: str
) -> None:
    broker, port = with_websockets(make_broker, pki if tls else None)
    config: dict[str, Any] = {**OVER, "host": "localhost", "protocol": protocol}
    if tls:
        config |= {"tls": {"ca_file": pki.file}}
    inbox, plain = Inbox(), Inbox()
    make_session("plain", port=broker.port, subscribe=("t/big", plain))
    receiver = make_session("in", port=port, config=config, subscribe=("t/+/s", inbox))
    sender = make_session("out", port=port, config=config)
    for i in range(1000):
        assert sender.publish("t/sure/s", b"%d" % i, qos=1)
        assert sender.publish("t/fast/s", b"", qos=0)
        receiver.ack(inbox.wait(2 * i + 2)[2 * i :])
    assert sender.publish("t/large/s", LARGE, qos=1)
    assert sender.publish("t/big", BIG, qos=1)
    assert plain.payloads(1) == [BIG]
    found = inbox.wait(2001)
    assert [d.payload for d in found if d.topic == "t/sure/s"] == [b"%d" % i for i in range(1000)]
    assert next(d.payload for d in found if d.topic == "t/large/s") == LARGE


def test_where_no_websocket_answers_one_line_says_so(
    make_broker: MakeBroker, make_session: Connect, log: Log
) -> None:
    plain, port = with_websockets(make_broker)
    make_session("a", port=plain.port, ready=False, config=OVER)
    told = log.wait("mqtt_unreachable")
    assert str(told["reason"]).startswith("no WebSocket: ")
    assert "mqtt.websocket" in str(told["remedy"])
    answer = edged("ctl", f"--broker=ws://127.0.0.1:{plain.port}", "rig", "ping")
    assert (answer.code, "no WebSocket" in answer.problem) == (1, True)
    answer = edged("ctl", f"--broker=mqtt://127.0.0.1:{port}", "rig", "ping")
    assert (answer.code, "MQTT port" in answer.problem) == (1, True)


def test_without_the_package_one_is_told_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets", None)
    with pytest.raises(UnavailableError, match=r"the package websockets is missing.*edged\[websockets\]"):
        Session(MqttConfig(websocket="/mqtt"), client_id="d")


class Server:
    """A WebSocket that pings after all that it reads, and keeps what comes."""

    def __init__(self) -> None:
        with socket.create_server((HOST, 0)) as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            self.client = socket.create_connection(listening.getsockname())
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            self._socket, _ = listening.accept()
        self._frames = ServerProtocol(max_size=None)
        self.paths, self.frames = list[str](), list[Frame]()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with closing(self._socket), suppress(ConnectionError):  # the client is gone at the end
            while data := self._socket.recv(4096):
                self._frames.receive_data(data)
                for event in self._frames.events_received():
                    if isinstance(event, Request):
                        self.paths.append(event.path)
                        assert event.headers["Sec-WebSocket-Protocol"] == "mqtt"
                        self._frames.send_response(self._frames.accept(event))
                        self._frames.send_binary(b"\x20\x02")
                        self._frames.send_binary(b"\x00\x00")
                    elif isinstance(event, Frame):
                        self.frames.append(event)
                if self._frames.state is OPEN and len(data) == 4096:
                    self._frames.send_ping(b"there?")
                self._socket.sendall(b"".join(self._frames.data_to_send()))

    def payload(self) -> bytes:
        return b"".join(frame.data for frame in self.frames if frame.opcode is Opcode.BINARY)


def test_pings_are_answered_while_a_large_message_is_on_its_way() -> None:
    """Mosquitto sends none; a proxy between may. A client masks what it sends (RFC 6455, 5.3)."""
    server = Server()
    wire = WebSocket(server.client, "broker", 80, "/mqtt/eu?x=1", tls=False)
    wire.setblocking(False)
    with suppress(BlockingIOError):
        assert wire.send(BIG) == 0
    got = b""
    while not server.payload():  # each answer to a ping takes a piece of it along
        with suppress(BlockingIOError):
            got += wire.recv(1)
    assert wire.send(BIG) == len(BIG)  # not once more
    assert wire.send(b"end") == 3
    assert got == b"\x20\x02\x00\x00"
    wait_until(lambda: server.payload().endswith(b"end"), PATIENCE)
    wire.close()
    assert server.payload() == BIG + b"end"
    assert Opcode.PONG in {frame.opcode for frame in server.frames}
    assert server.paths == ["/mqtt/eu?x=1"]


@pytest.mark.slow
def test_a_device_and_a_person_on_wss(pki: Authority, make_broker: MakeBroker, tmp_path: Path) -> None:
    """`mqtt.websocket` and `mqtt.tls`, beside a plain listener for the sensors."""
    broker, port = with_websockets(make_broker, pki)
    settings = {"host": "localhost", "port": port, "tls": {"ca_file": str(pki.file)}}
    device = Device(tmp_path, broker.port, {"features": 2, "classes": 2}, mqtt=settings | OVER)
    with running(device, broker.port) as listener:
        for i in range(200):
            listener.send("sensors/a", {"x": [i, 1.0]})
        listener.wait(lambda: len(listener.messages["predictions"]) == 200)
        url = f"wss://localhost:{port}/?root=edged"
        answer = edged("ctl", "--broker", url, "--ca", pki.file, "rig", "config.get", "--json")
        assert answer.json["status"] == "ok"
        with Operator(MqttConfig.model_validate(broker_section(url, ca=pki.file))) as operator:
            operator.subscribe(["t"])
            listener.publish("t", LARGE)
            assert next(operator.messages(time.monotonic() + PATIENCE)).payload == LARGE
