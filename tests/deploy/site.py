"""A mosquitto that runs with the files of deploy/mosquitto, and clients with certificates of its script."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edged.workbench.demo.broker import find_mosquitto, free_port
from tests.mosquitto import Mosquitto

if TYPE_CHECKING:
    from typing_extensions import Self

FILES = Path(__file__).parents[2] / "deploy" / "mosquitto"
SCRIPT = FILES / "certificates.sh"
INSTALLED = "/etc/mosquitto/edged"
PASSWORD = "correct horse"  # noqa: S105  of accounts that live as long as the test
Protocol = Literal["5", "3.1.1"]
PATIENCE = 10.0


def script(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run certificates.sh."""
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=check, timeout=60)


class Site(Mosquitto):
    """The files as shipped; only the ports are others, and the directory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, free_port())
        self.devices, self.operators = free_port(), free_port()
        self.keys = folder / "edged"
        script(str(self.keys), "broker", "localhost", "127.0.0.1")
        script(str(self.keys), "device", "press-7", "press-8", "press-9")
        script(
            str(self.keys), "operator", "operator", "viewer", "fleet", "homeassistant", "sensors", "nobody"
        )
        script(str(self.keys), "revoke", "device", "press-9")
        for acl in FILES.glob("*.acl"):
            shutil.copy(acl, self.keys)
        accounts = self.keys / "passwords"
        accounts.write_text(f"press-7:{PASSWORD}\nsensors:{PASSWORD}\n")
        subprocess.run(["mosquitto_passwd", "-U", str(accounts)], check=True)
        for file in self.keys.glob("**/*"):
            file.chmod(0o700)

    @property
    def ports(self) -> tuple[int, ...]:
        """All three listeners: they are opened one after the other."""
        return self.port, self.devices, self.operators

    def command(self) -> list[str]:
        """Below a main file such as Debian's."""
        text = (FILES / "edged.conf").read_text().replace(INSTALLED, str(self.keys))
        for given, port in ((1883, self.port), (8883, self.devices), (8884, self.operators)):
            assert text.count(f"\nlistener {given}") == 1
            text = text.replace(f"\nlistener {given}", f"\nlistener {port}")
        main = f"persistence true\npersistence_location {self.directory}/\nlog_dest stderr\nuser root\n"
        path = self.directory / "mosquitto.conf"
        path.write_text(main + text)
        return [find_mosquitto() or "mosquitto", "-c", str(path)]


class Guest:
    """A plain paho client: what it was told, and what came.

    Parameters
    ----------
    port
        Of a listener.
    certificate
        Stem of certificate and key; without it the connection is plain text, or TLS with `ca`.
    account
        User name, with `PASSWORD`.
    """

    def __init__(
        self,
        port: int,
        *,
        ca: Path | None = None,
        certificate: Path | None = None,
        account: str | None = None,
        password: str = PASSWORD,
        protocol: Protocol = "5",
        client_id: str = "",
        will: str | None = None,
    ) -> None:
        self.came: list[tuple[str, bytes]] = []
        self.connack: str | None = None
        self.left: str | None = None
        self._changed = threading.Condition()
        self._answers: dict[int, str] = {}
        v5 = protocol == "5"
        self._client = client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=mqtt.MQTTv5 if v5 else mqtt.MQTTv311,
            reconnect_on_failure=False,
        )
        if ca is not None:
            context = ssl.create_default_context(cafile=ca)
            if certificate is not None:
                context.load_cert_chain(f"{certificate}.pem", f"{certificate}.key")
            client.tls_set_context(context)
        if account is not None:
            client.username_pw_set(account, password)
        if will is not None:
            client.will_set(will, b"forged", qos=1)
        client.on_connect = lambda _, __, ___, reason, ____: self._note("connack", str(reason))
        client.on_disconnect = lambda _, __, ___, reason, ____: self._note("left", str(reason))
        client.on_publish = lambda _, __, mid, reason, ___: self._answered(mid, str(reason))
        client.on_subscribe = lambda _, __, mid, reasons, ___: self._answered(mid, str(reasons[0]))
        client.on_message = self._on_message
        try:
            if v5:
                lasting = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
                lasting.SessionExpiryInterval = 60
                client.connect("localhost", port, clean_start=False, properties=lasting)
            else:
                client.connect("localhost", port)
        except OSError as problem:
            self.left = str(problem)
            return
        client.loop_start()
        self.wait(lambda: self.connack is not None or self.left is not None)

    def _note(self, name: str, value: str) -> None:
        with self._changed:
            setattr(self, name, value)
            self._changed.notify_all()

    def _answered(self, mid: int, reason: str) -> None:
        with self._changed:
            self._answers[mid] = reason
            self._changed.notify_all()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        with self._changed:
            self.came.append((message.topic, bytes(message.payload)))
            self._changed.notify_all()

    @property
    def let_in(self) -> bool:
        """Whether the broker took the connection."""
        return self.connack == "Success" and self.left is None

    def wait(self, condition: Callable[[], Any]) -> None:
        """Until it holds; an error after ten seconds."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), (self.connack, self.left, self.came)

    def subscribe(self, topic: str) -> str:
        """The broker's answer."""
        _, mid = self._client.subscribe(topic, 1)
        assert mid is not None
        self.wait(lambda: mid in self._answers)
        return self._answers[mid]

    def publish(self, topic: str, payload: bytes = b"{}", *, retain: bool = False) -> str:
        """Publish at QoS 1; the broker's answer, or `left` when it hung up."""
        mid = self._client.publish(topic, payload, qos=1, retain=retain).mid
        self.wait(lambda: mid in self._answers or self.left is not None)
        return self._answers.get(mid, "left")

    def got(self, topic: str, payload: bytes) -> None:
        """Wait for one message."""
        self.wait(lambda: (topic, payload) in self.came)

    def close(self) -> None:
        """Leave in good order."""
        self._client.disconnect()
        self._client.loop_stop()

    def vanish(self) -> None:
        """Break the connection, so that the will is published."""
        sock = self._client.socket()
        assert sock is not None
        self._client.loop_stop()
        sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
