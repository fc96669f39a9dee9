"""The other side of the commands: a client that asks devices and listens to them."""

from __future__ import annotations

import json
import queue
import secrets
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edged.domain.json_fields import JsonObject
from edged.errors import BrokerError, ConfigError
from edged.mqtt.client.connection import SocketClient
from edged.mqtt.topics import Topics

if TYPE_CHECKING:
    from typing_extensions import Self


CONNECT_SECONDS = 10.0
OPEN = ("accepted", "executing")
PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
UNSUPPORTED = "Unsupported protocol version"
CLOSED = "it closed the connection"


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker is, and how to get in. `password` and the files are not part of the URL."""

    host: str
    port: int
    root: str = "edged"
    username: str | None = None
    password: str | None = None
    tls: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    websocket: str | None = None  # its path

    @classmethod
    def parse(cls, url: str, **more: Any) -> BrokerAddress:
        """Read `mqtt://[user@]host[:port][/root]` or `ws://[user@]host[:port][/path][?root=ROOT]`.

        `mqtts` and `wss` are with TLS. Raises ConfigError when it is none, or holds a password.

        >>> address = BrokerAddress.parse("mqtts://me@broker/plant")
        >>> address.host, address.port, address.root, address.username, address.tls
        ('broker', 8883, 'plant', 'me', True)
        >>> address = BrokerAddress.parse("wss://broker?root=plant")
        >>> address.port, address.websocket, address.root
        (443, '/mqtt', 'plant')
        """
        parts = urlsplit(url if "://" in url else f"mqtt://{url}")
        remedy = "write mqtt://host:1883, mqtts://host:8883 for TLS, or wss://host:443/mqtt for a WebSocket"
        try:
            port = parts.port
        except ValueError:
            raise ConfigError("no port", where=url, remedy=remedy) from None
        if parts.scheme not in PORTS or not parts.hostname:
            raise ConfigError("this is not the address of a broker", where=url, remedy=remedy)
        if parts.password is not None:
            raise ConfigError(
                "a password in an address is visible to others",
                where="--broker",
                remedy="set EDGED_PASSWORD or --password-file",
            )
        tls = parts.scheme in ("mqtts", "wss")
        if not tls and (more.get("ca") or more.get("cert") or more.get("key")):
            raise ConfigError(
                "certificates need TLS", where="--ca, --cert, --key", remedy="name mqtts:// or wss://"
            )
        if more.get("key") and not more.get("cert"):
            raise ConfigError("a key without its certificate", where="--key", remedy="add --cert")
        websocket = parts.scheme.startswith("ws")
        root = parse_qs(parts.query).get("root", [""])[-1] if websocket else parts.path
        return cls(
            parts.hostname,
            port or PORTS[parts.scheme],
            root.strip("/") or "edged",
            None if parts.username is None else unquote(parts.username),
            tls=tls,
            websocket=(parts.path.rstrip("/") or "/mqtt") if websocket else None,
            **more,
        )

    def tls_context(self) -> ssl.SSLContext:
        """Whom to trust, and the certificate to show; ConfigError when a certificate cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except OSError as problem:
            raise ConfigError(
                f"cannot use the certificates: {problem}", where="--ca, --cert, --key"
            ) from problem
        return context


class Operator:
    """A connection from which devices are asked and listened to; a context manager.

    It speaks MQTT 5, or 3.1.1 where the broker does not. Raises BrokerError when the broker cannot be reached
    or lets nobody in; ConfigError when a certificate cannot be used.
    """

    def __init__(self, address: BrokerAddress) -> None:
        self._address = address
        self._messages: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()
        self._use(MQTTProtocolVersion.MQTTv5)

    def _use(self, version: MQTTProtocolVersion) -> None:
        """Make a client of this version of MQTT, with nothing left of an earlier one."""
        address = self._address
        self._answers = answers = queue.SimpleQueue[str]()
        self._client = client = SocketClient(
            CallbackAPIVersion.VERSION2, protocol=version, reconnect_on_failure=False
        )
        client.username = address.username
        client.password = address.password
        if address.websocket is not None:
            client.use_websocket(address.websocket)
        client.on_message = lambda _, __, message: self._messages.put((message.topic, bytes(message.payload)))
        client.on_connect = lambda _, __, ___, reason, ____: answers.put(str(reason))
        client.on_disconnect = lambda *_: answers.put(CLOSED)
        client.on_subscribe = lambda _, __, ___, reasons, ____: answers.put(str(reasons[0]))
        if address.tls:
            client.tls_set_context(address.tls_context())

    def __enter__(self) -> Self:
        where = f"{self._address.host}:{self._address.port}"
        first = reason = self._connect(where)
        if reason in (UNSUPPORTED, CLOSED):
            self._use(MQTTProtocolVersion.MQTTv311)
            reason = self._connect(where)
        if reason == UNSUPPORTED or (first, reason) == (UNSUPPORTED, CLOSED):
            raise BrokerError("the broker speaks neither MQTT 5 nor 3.1.1", where=where, remedy="update it")
        if reason == CLOSED:
            remedy = "check that this is an MQTT port; TLS needs mqtts:// or wss://"
            raise BrokerError(f"no answer to MQTT 5 nor 3.1.1: {reason}", where=where, remedy=remedy)
        if reason != "Success":
            raise BrokerError(f"the broker refused: {reason}", where=where, remedy="check user and password")
        return self

    def _connect(self, where: str) -> str:
        """What the broker says to our CONNECT; BrokerError when it says nothing, or is not there."""
        try:
            self._client.connect(self._address.host, self._address.port)
        except OSError as problem:
            raise BrokerError(
                f"no connection: {problem}", where=where, remedy="is it running? --broker names another"
            ) from problem
        self._client.loop_start()
        reason = self._answered(where)
        if reason != "Success":
            self.close()
        return reason

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from the broker and stop the network thread."""
        self._client.disconnect()
        self._client.loop_stop()

    def _answered(self, where: str) -> str:
        try:
            return self._answers.get(timeout=CONNECT_SECONDS)
        except queue.Empty:
            raise BrokerError(
                "the broker does not answer", where=where, remedy="is this an MQTT port?"
            ) from None

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe to these filters; BrokerError when the broker refuses."""
        for pattern in filters:
            self._client.subscribe(pattern, qos=1)
            reason = self._answered(pattern)
            if not reason.startswith("Granted"):
                raise BrokerError(
                    f"subscription refused: {reason}", where=pattern, remedy="check its access rules"
                )

    def messages(self, until: float) -> Iterator[tuple[str, bytes]]:
        """What comes, topic and payload, until a moment on the monotonic clock."""
        while (left := until - time.monotonic()) > 0:
            try:
                yield self._messages.get(timeout=left)
            except queue.Empty:
                return

    def send(self, device: str, command: str, request: JsonObject, key: Path | None = None) -> None:
        """Hand a command to the broker, signed with the private key in the file `key` where one is given.

        Raises BrokerError when it does not take it; ConfigError when the key cannot be used.
        """
        topic = Topics(f"{self._address.root}/{device}").request(command)
        payload = json.dumps(request).encode()
        if key is not None:
            from edged.signing import sign_command

            payload = sign_command(
                command,
                device,
                request,
                key,
                now=time.time(),
                transaction=secrets.token_hex(8),
                root=self._address.root,
            )
        handed = self._client.publish(topic, payload, qos=1)
        handed.wait_for_publish(CONNECT_SECONDS)
        if not handed.is_published():
            raise BrokerError("the broker did not accept the command", where=topic)

    def request(
        self, device: str, command: str, fields: JsonObject, timeout: float, key: Path | None = None
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Send a command, signed if a key is set; yield `("progress", …)` and `("answer", …)`.

        Raises BrokerError when none has come in `timeout` seconds; each message of a command that takes long
        begins them anew.
        """
        topics = Topics(f"{self._address.root}/{device}")
        request = {"transaction": secrets.token_hex(8), **fields}
        progress = topics.progress(str(request["transaction"]))
        self.subscribe([topics.response(command), progress])
        self.send(device, command, request, key)
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            for topic, payload in self.messages(until):
                message = json.loads(payload)
                if message.get("transaction") != request["transaction"]:
                    continue
                until = time.monotonic() + timeout
                if topic.replace(".", "/") == progress.replace(".", "/"):  # RabbitMQ makes slashes of dots
                    yield "progress", message
                    continue
                yield "answer", message
                if message.get("state") not in OPEN:
                    return
        raise BrokerError(
            f"no answer in {timeout:g} s",
            where=f"{device} {command}",
            remedy="`edged ctl watch` shows which devices are online",
        )
