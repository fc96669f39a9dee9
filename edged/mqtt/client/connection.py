"""Making a paho client from the configuration, and putting its refusals into words."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edged.config import MqttConfig
from edged.errors import BrokerError, ConfigError, required
from edged.mqtt.client.message import paho_properties
from edged.mqtt.client.packets import PacketSocket

if TYPE_CHECKING:
    import ssl

    from edged.mqtt.client.reconnect import Protocol

LastWords = tuple[str, bytes, bool]
Will = LastWords | Callable[[], LastWords]

CONNECT_TIMEOUT = 5.0
MAX_PACKET = 16 * 1024 * 1024
_FOREVER = 0xFFFFFFFF


class PacketClient(Client):
    """paho's client over a `PacketSocket`, itself over a WebSocket where there is a path for one.

    The only place where something inside paho is replaced.
    """

    websocket: str | None = None

    def use_tls(self, context: ssl.SSLContext, *, check_host: bool) -> None:
        """Make the next connection with this context, which paho itself takes once only."""
        context.check_hostname = check_host
        self._ssl_context = context
        self._ssl = True
        self._tls_insecure = not check_host

    def forget(self, mid: int) -> None:
        """Do not repeat a QoS 1 message on the next connection; call it between two of them."""
        self._out_messages.pop(mid, None)

    def _create_socket(self) -> PacketSocket:
        sock: Any = super()._create_socket()
        if sock.family != socket.AF_UNIX:
            # Else an acknowledgement waits for the broker's TCP to confirm the prediction before it: 40 ms.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kind = PacketSocket
        if self._ssl or self.websocket:
            from edged.mqtt.client.tls import TlsPacketSocket

            kind = TlsPacketSocket
        if self.websocket:
            from edged.mqtt.client.websocket import WebSocket

            sock = WebSocket(sock, self._host, self._port, self.websocket, tls=self._ssl)
        return kind(sock, v5=self.protocol == MQTTProtocolVersion.MQTTv5)

    def _sock_recv(self, bufsize: int) -> bytes:
        """As paho's own, without asking for the names of TLS errors first: that imports ssl."""
        if self._sock is None:
            raise ConnectionError("self._sock is None")
        return self._sock.recv(bufsize)

    def _create_unix_socket_connection(self) -> socket.socket:
        """As paho's own, but with a limit of time, and closed when nobody listens."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(CONNECT_TIMEOUT)
            sock.connect(self._host)
        except OSError:
            sock.close()
            raise
        return sock

    @property
    def wire(self) -> PacketSocket | None:
        """The wire of the present connection.

        Raises BrokerError when this release of paho makes its sockets in another way.
        """
        sock: Any = self.socket()
        if sock is None or isinstance(sock, PacketSocket):
            return sock
        raise BrokerError("this release of paho-mqtt is not supported", remedy="install paho-mqtt 2.1 or 2.2")


def make_client(
    config: MqttConfig, client_id: str, protocol: Protocol, will: Will | None, *, clean: bool = False
) -> PacketClient:
    """A client that is set up but not yet connected; `clean` when the broker shall remember nothing of it.

    Raises ConfigError when a certificate or key cannot be used, or a package is missing.
    """
    v5 = protocol == "5"
    client = PacketClient(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        clean_session=None if v5 else clean,
        protocol=MQTTProtocolVersion.MQTTv5 if v5 else MQTTProtocolVersion.MQTTv311,
        manual_ack=True,
        transport="unix" if config.host.startswith("/") else "tcp",
        reconnect_on_failure=False,
    )
    client.connect_timeout = CONNECT_TIMEOUT
    if config.websocket is not None:
        required("websockets", "websockets", "mqtt.websocket")
        client.websocket = config.websocket
    # With this callback paho leaves all writing to our loop.
    client.on_socket_register_write = _leave_writing_to_the_loop
    if not callable(will):
        _set_will(client, will)
    _renew_tls(client, config)
    keepalive = max(1, round(config.keepalive))
    if v5:
        properties = _connect_properties(config, clean=clean)
        client.connect_async(config.host, config.port, keepalive, clean_start=clean, properties=properties)
    else:
        client.connect_async(config.host, config.port, keepalive)
    return client


def _leave_writing_to_the_loop(client: Client, userdata: object, sock: object) -> None: ...


def renew_will(client: Client, will: Will | None) -> None:
    """Before a connection: a will that is asked for anew each time."""
    if callable(will):
        _set_will(client, will())


def _set_will(client: Client, will: LastWords | None) -> None:
    if will is not None:
        topic, payload, retain = will
        client.will_set(topic, payload, qos=1, retain=retain)


def _connect_properties(config: MqttConfig, *, clean: bool) -> Properties:
    properties = paho_properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 0 if clean else min(_FOREVER, round(config.constants.session_expiry))
    properties.ReceiveMaximum = config.constants.receive_maximum
    properties.MaximumPacketSize = MAX_PACKET
    return properties


def in_flight(config: MqttConfig, protocol: str) -> int:
    """How many messages the broker sends before it waits for acknowledgements, as far as is known.

    At MQTT 3.1.1 that is the broker's own business: 20 is mosquitto's default, and one of the smallest.
    """
    return config.constants.receive_maximum if protocol == "5" else 20


def renew(client: PacketClient, config: MqttConfig) -> None:
    """Read certificates, keys and password anew, so that changed files count at the next attempt.

    Raises ConfigError when one of them cannot be read or used.
    """
    _renew_tls(client, config)
    name, password = credentials(config)
    if name is not None:
        client.username_pw_set(name, password)


def _renew_tls(client: PacketClient, config: MqttConfig) -> None:
    if config.tls is not None:
        from edged.mqtt.client import tls

        client.use_tls(tls.context(config.tls), check_host=not config.tls.insecure)


def credentials(config: MqttConfig) -> tuple[str | None, str | None]:
    """User name and password: from the configuration's file, else from systemd's credentials.

    Raises ConfigError when a file cannot be read.
    """
    name = config.username or _credential("user name", "mqtt-username")
    if name is None:
        return None, None
    if config.constants.password is not None:
        return name, config.constants.password
    if config.password_file is not None:
        return name, _first_line("password", config.password_file, "mqtt.password_file")
    return name, _credential("password", "mqtt-password")


def _credential(what: str, name: str) -> str | None:
    """A credential that systemd handed to this service (systemd.exec(5), LoadCredential=); None without."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if not folder or not (Path(folder) / name).exists():
        return None
    return _first_line(what, Path(folder) / name, "systemd credential")


def _first_line(what: str, path: Path, where: str) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        # Without the problem's own words: those of a decoding error quote what was read.
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"cannot read the {what}: {reason}",
            where=f"{where}: {path}",
            remedy="its first line counts; this user must be able to read it",
        ) from None
    return lines[0] if lines else ""


TAKEN_OVER = "Session taken over"
UNSUPPORTED = "Unsupported protocol version"

_REFUSALS = {
    "Bad user name or password": "check mqtt.username and the first line of mqtt.password_file",
    "Not authorized": "check mqtt.username, mqtt.password_file and the broker's access rules",
    "Client identifier not valid": "set mqtt.client_id to one that the broker allows",
    "Banned": "the broker has banned this client",
    "Server unavailable": "the broker is up but not ready; trying again",
    "Server busy": "trying again",
    TAKEN_OVER: "another client uses the same mqtt.client_id: give each device its own device.id",
    "Unspecified error": "the connection broke; when that repeats, see whether two use one mqtt.client_id",
    "Keep alive timeout": "the broker or the network hangs; see mqtt.keepalive",
    "Packet too large": "raise the broker's packet limit",
    UNSUPPORTED: "set mqtt.protocol to the version that the broker speaks",
}


def refusal_remedy(reason: str) -> str:
    """What to do about a reason that the broker gave."""
    return _REFUSALS.get(reason, "see the broker's log")


def failure(problem: OSError, config: MqttConfig) -> tuple[str, str]:
    """Reason and remedy for a connection that did not come about."""
    if config.tls is not None:
        from edged.mqtt.client import tls

        known = tls.failure(problem, config)
        if known is not None:
            return known
    if config.websocket is not None:
        from edged.mqtt.client.websocket import HandshakeError

        if isinstance(problem, HandshakeError):
            return str(problem), "check mqtt.port, mqtt.websocket, and mqtt.tls: wss needs it, ws bears none"
    if isinstance(problem, socket.gaierror):
        return f"unknown host {config.host}", "check mqtt.host and the name server"
    if isinstance(problem, TimeoutError):
        return "no answer", f"is {config.address} reachable from here?"
    reason = (problem.strerror or str(problem)).lower()
    return reason, f"does a broker listen on {config.address}?"
