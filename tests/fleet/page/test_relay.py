"""MQTT over websockets: through the relay, and from a broker that serves the page itself."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from websockets.frames import Frame, Opcode

from edged.fleet.page.files import PageSettings, page_files, write_files
from edged.fleet.page.relay import LARGEST
from edged.workbench.demo.broker import free_port
from tests.certificates import Authority
from tests.fleet.page.test_page import KEY, websocket
from tests.fleet.page.ui import Ui, fleet_ui
from tests.running_device import wait_until

if TYPE_CHECKING:
    from tests.conftest import MakeBroker


class Browser:
    """What the page does, by paho: MQTT 5 over a websocket under `/mqtt`."""

    def __init__(self, port: int, user: str = "", password: str = "", **headers: str) -> None:
        self.said: queue.Queue[Any] = queue.Queue()
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5, transport="websockets")
        self.client.username, self.client.password = user or None, password or None
        self.client.on_connect = lambda _, __, ___, reason, ____: self.said.put(str(reason))
        self.client.on_subscribe = lambda *_: self.said.put("subscribed")
        self.client.on_message = lambda _, __, message: self.said.put(message.payload)
        self.client.ws_set_options("/mqtt", headers)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def echo(self, payload: bytes) -> None:
        """Out and back again."""
        self.client.subscribe("edged/x/echo", qos=1)
        assert self.said.get(timeout=10) == "subscribed"
        self.client.publish("edged/x/echo", payload, qos=1)
        assert self.said.get(timeout=10) == payload

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_mqtt_goes_through_the_relay_unchanged(make_broker: MakeBroker, tmp_path: Path) -> None:
    accounts = tmp_path / "accounts"
    subprocess.run(["mosquitto_passwd", "-b", "-c", accounts, "viewer", "s3cret"], check=True)
    accounts.chmod(0o644)
    broker = make_broker("allow_anonymous false", f"password_file {accounts}")
    with fleet_ui("--broker", f"mqtt://127.0.0.1:{broker.port}") as ui:
        refused = Browser(ui.port, "viewer", "wrong")
        assert refused.said.get(timeout=10) == "Not authorized"
        refused.close()
        browser = Browser(ui.port, "viewer", "s3cret")
        assert browser.said.get(timeout=10) == "Success"
        for size in (1, 125, 126, 70_000, 300_000):
            browser.echo(bytes(n % 251 for n in range(size)))
        assert closing(ui, masked(Opcode.BINARY, b"\x10") + b"\x82\x05hello") == 1002  # not masked
        assert closing(ui, b"\x82\xff" + (LARGEST + 1).to_bytes(8, "big")) == 1009
        assert closing(ui, masked(Opcode.TEXT, b"hello")) == 1003
        assert closing(ui, masked(Opcode.CLOSE, b"\x03\xe8")) == 1000
        browser.echo(b"others go on")
        browser.close()


def masked(opcode: Opcode, payload: bytes) -> bytes:
    """A frame as a browser sends it."""
    return Frame(opcode, payload).serialize(mask=True)


def closing(ui: Ui, data: bytes) -> int:
    """The code with which the relay closes after this."""
    request = (
        f"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1:{ui.port}\r\nOrigin: {ui.url.rstrip('/')}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", ui.port), timeout=10) as link, link.makefile("rb") as answers:
        link.sendall(request.encode())
        assert answers.readline().split()[1] == b"101"
        while answers.readline() != b"\r\n":
            pass
        link.sendall(data)
        head = answers.read(2)
        assert head[0] == 0x88
        assert 2 <= head[1] <= 125
        return int.from_bytes(answers.read(2), "big")


def test_the_certificate_is_only_for_who_has_the_code(make_broker: MakeBroker, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, server_key = authority.issue("localhost")
    mine, my_key = authority.issue("operator")
    for path in tmp_path.iterdir():
        path.chmod(0o644)
    broker = make_broker(
        "allow_anonymous true", f"cafile {authority.file}", f"certfile {server}", f"keyfile {server_key}",
        "require_certificate true", "use_identity_as_username true",
    )  # fmt: skip
    files = ("--ca", str(authority.file), "--cert", str(mine), "--key", str(my_key))
    with fleet_ui("--broker", f"mqtts://localhost:{broker.port}", *files) as ui:
        assert ui.code is not None
        assert b'name="edged-code" content="yes"' in ui.ask("/").body
        for code, status in ((ui.code, 204), (ui.code[:-1], 403), ("", 403)):
            assert ui.ask("/code", Edged_Code=code).status == status
        for shown in ("mqtt", f"mqtt, {ui.code[:-1]}", f"mqtt, {ui.code}0"):
            assert websocket(ui, Sec_WebSocket_Protocol=shown) == 403
        browser = Browser(ui.port, **{"Sec-Websocket-Protocol": f"mqtt, {ui.code}"})
        assert browser.said.get(timeout=10) == "Success"
        browser.echo(bytes(100_000))
        browser.close()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_mosquitto_serves_the_page_itself(make_broker: MakeBroker, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    write_files(PageSettings(), tmp_path / "site")
    port = free_port()
    make_broker(
        "allow_anonymous true",
        *(f"listener {port} 127.0.0.1", "protocol websockets", f"http_dir {tmp_path / 'site'}"),
    )
    wait_until(lambda: listens(port))
    files = page_files(PageSettings())
    for name, content in [(name, files[name]) for name in ("index.html", "mqtt.min.js", "devices.js")]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=10) as answer:
            assert answer.read() == content
    browser = Browser(port)
    assert browser.said.get(timeout=10) == "Success"
    browser.echo(b"hello")
    browser.close()


def test_without_the_package_only_the_relay_is_missing(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['websockets'] = None; from edged.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", hidden, "fleet", "ui"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 4
    assert "pip install 'edged[fleet-page]'" in ended.stderr
    assert ended.stderr.count("\n") == 1
    subprocess.run([*command, "--out", tmp_path / "site"], check=True, capture_output=True, timeout=60)
