"""The other side of the commands: a client that asks devices and listens to them."""

from __future__ import annotations

import json
import queue
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from typing_extensions import Self

from edged.config import MqttConfig
from edged.domain.json_fields import JsonObject
from edged.errors import BrokerError, ConfigError
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.mqtt.topics import Topics

CONNECT_SECONDS = 10.0
OPEN = ("accepted", "executing")
PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}


def broker_section(
    url: str, *, ca: Path | None = None, cert: Path | None = None, key: Path | None = None
) -> dict[str, Any]:
    """The section `mqtt` for `mqtt://[user@]host[:port][/root]` or `ws://[user@]host[:port][/path][?root=ROOT]`.

    `mqtts` and `wss` are with TLS. Raises ConfigError when it is none, or holds a password.

    >>> broker_section("mqtts://me@broker/plant")
    {'host': 'broker', 'port': 8883, 'root': 'plant', 'username': 'me', 'tls': {}}
    >>> broker_section("ws://localhost")
    {'host': 'localhost', 'port': 80, 'websocket': '/mqtt'}
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
    tls, websocket = parts.scheme in ("mqtts", "wss"), parts.scheme.startswith("ws")
    files = {"ca_file": ca, "cert_file": cert, "key_file": key or cert}
    if not tls and any(files.values()):
        raise ConfigError(
            "certificates need TLS", where="--ca, --cert, --key", remedy="name mqtts:// or wss://"
        )
    if key and not cert:
        raise ConfigError("a key without its certificate", where="--key", remedy="add --cert")
    root = (parse_qs(parts.query).get("root", [""])[-1] if websocket else parts.path).strip("/")
    local = MqttConfig(host=parts.hostname, insecure=True).is_local
    section = {
        "host": parts.hostname,
        "port": port or PORTS[parts.scheme],
        "root": root or None,
        "username": None if parts.username is None else unquote(parts.username),
        "websocket": (parts.path.rstrip("/") or "/mqtt") if websocket else None,
        "tls": {name: file for name, file in files.items() if file} if tls else None,
        "insecure": True if not (tls or local) else None,
    }
    return {name: value for name, value in section.items() if value is not None}


class Operator:
    """A connection from which devices are asked and listened to; a context manager.

    It leaves no session behind at the broker. Raises BrokerError when the broker cannot be reached or lets
    nobody in, with `remedy` as well; ConfigError when a certificate or password cannot be used.
    """

    def __init__(self, config: MqttConfig, remedy: str = "") -> None:
        self._root, self._remedy = config.root, remedy
        self._session = Session(config, client_id=f"edged-ctl-{secrets.token_hex(8)}", clean=True)
        self._messages: queue.SimpleQueue[ReceivedMessage] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        self._session.connect(CONNECT_SECONDS, self._remedy)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.stop()

    def _receive(self, delivery: ReceivedMessage) -> None:
        self._messages.put(delivery)
        self._session.ack([delivery])

    def subscribe(self, filters: Sequence[str]) -> None:
        """Subscribe to these filters; BrokerError when the broker refuses."""
        self._session.subscribe(filters, 1, self._receive)
        if not self._session.wait_ready(CONNECT_SECONDS):
            problem = self._session.problem or "the broker does not confirm subscriptions"
            raise BrokerError(problem, where=filters[0])
        for pattern in filters:
            if reason := self._session.refused.get(pattern):
                raise BrokerError(
                    f"subscription refused: {reason}", where=pattern, remedy="check its access rules"
                )

    def messages(self, until: float) -> Iterator[ReceivedMessage]:
        """What comes until a moment on the monotonic clock."""
        while (left := until - time.monotonic()) > 0:
            try:
                yield self._messages.get(timeout=left)
            except queue.Empty:
                return

    def send(self, device: str, command: str, request: JsonObject, key: Path | None = None) -> None:
        """Hand a command to the broker, signed with the private key in the file `key` where one is given.

        Raises BrokerError when it does not take it; ConfigError when the key cannot be used.
        """
        topic = Topics(f"{self._root}/{device}").request(command)
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
                root=self._root,
            )
        handed = threading.Event()
        sent = self._session.publish(topic, payload, qos=1, on_done=handed.set)
        if not sent or not handed.wait(CONNECT_SECONDS) or self._session.dropped:
            raise BrokerError("the broker did not accept the command", where=topic)

    def request(
        self, device: str, command: str, fields: JsonObject, timeout: float, key: Path | None = None
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Send a command, signed if a key is set; yield `("progress", …)` and `("answer", …)`.

        Raises BrokerError when none has come in `timeout` seconds; each message of a command that takes long
        begins them anew.
        """
        topics = Topics(f"{self._root}/{device}")
        request = {"transaction": secrets.token_hex(8), **fields}
        progress = topics.progress(str(request["transaction"]))
        self.subscribe([topics.response(command), progress])
        self.send(device, command, request, key)
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            for delivery in self.messages(until):
                message = json.loads(delivery.payload)
                if message.get("transaction") != request["transaction"]:
                    continue
                until = time.monotonic() + timeout
                # RabbitMQ makes slashes of dots.
                if delivery.topic.replace(".", "/") == progress.replace(".", "/"):
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


def observe(
    config: MqttConfig, filters: Sequence[str], seconds: float, remedy: str = ""
) -> Iterator[ReceivedMessage]:
    """Yield what comes on these filters for some seconds, retained messages first; raises as `Operator`."""
    with Operator(config, remedy) as operator:
        operator.subscribe(filters)
        yield from operator.messages(time.monotonic() + seconds)
