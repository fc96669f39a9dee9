"""Making a paho client from the configuration, and putting its refusals into words."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes

from edged.errors import BrokerError, ConfigError
from edged.mqtt.delivery import paho_properties
from edged.mqtt.wire import Wire

if TYPE_CHECKING:
    from pathlib import Path

    from paho.mqtt.properties import Properties

    from edged.config import MqttConfig, TlsConfig
    from edged.mqtt.reconnect import Protocol

Will = tuple[str, bytes, bool]

CONNECT_TIMEOUT = 5.0
MAX_PACKET = 16 * 1024 * 1024
_FOREVER = 0xFFFFFFFF


class _TlsSocket(ssl.SSLSocket):
    """Closes itself when the handshake fails, which paho leaves to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


class WireClient(Client):
    """paho's client over a `Wire`: the only place where a method inside paho is replaced."""

    def _create_socket(self) -> Wire:
        return Wire(super()._create_socket(), v5=self.protocol == MQTTProtocolVersion.MQTTv5)  # type: ignore[arg-type]

    @property
    def wire(self) -> Wire | None:
        """The wire of the present connection.

        Raises
        ------
        BrokerError
            When this release of paho makes its sockets in another way.
        """
        sock: Any = self.socket()
        if sock is None or isinstance(sock, Wire):
            return sock
        raise BrokerError("this release of paho-mqtt is not supported", remedy="install paho-mqtt 2.1 or 2.2")


def make_client(config: MqttConfig, client_id: str, protocol: Protocol, will: Will | None) -> WireClient:
    """A client that is set up but not yet connected.

    Raises
    ------
    ConfigError
        When a certificate or key cannot be used.
    """
    v5 = protocol == "5"
    client = WireClient(
        CallbackAPIVersion.VERSION2,
        client_id=client_id,
        clean_session=None if v5 else False,
        protocol=MQTTProtocolVersion.MQTTv5 if v5 else MQTTProtocolVersion.MQTTv311,
        manual_ack=True,
        reconnect_on_failure=False,
    )
    client.connect_timeout = CONNECT_TIMEOUT
    # With this callback paho leaves all writing to our loop.
    client.on_socket_register_write = _leave_writing_to_the_loop
    if will is not None:
        topic, payload, retain = will
        client.will_set(topic, payload, qos=1, retain=retain)
    if config.tls is not None:
        client.tls_set_context(_tls_context(config.tls))
        client.tls_insecure_set(config.tls.insecure)
    keepalive = max(1, round(config.keepalive))
    if v5:
        properties = _connect_properties(config)
        client.connect_async(config.host, config.port, keepalive, clean_start=False, properties=properties)
    else:
        client.connect_async(config.host, config.port, keepalive)
    return client


def _leave_writing_to_the_loop(client: Client, userdata: object, sock: object) -> None: ...


def _connect_properties(config: MqttConfig) -> Properties:
    properties = paho_properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = min(_FOREVER, round(config.session_expiry))
    properties.ReceiveMaximum = config.receive_maximum
    properties.MaximumPacketSize = MAX_PACKET
    return properties


def _tls_context(tls: TlsConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        context.sslsocket_class = _TlsSocket
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as problem:
        raise ConfigError(
            f"cannot use the certificates: {problem}",
            where="mqtt.tls",
            remedy="ca_file, cert_file and key_file must be readable PEM files that belong together",
        ) from problem
    return context


def set_credentials(client: Client, config: MqttConfig) -> None:
    """Read the password anew, so that a changed file counts at the next attempt.

    Raises
    ------
    ConfigError
        When the password file cannot be read.
    """
    if config.username is None:
        return
    password = None if config.password_file is None else _first_line(config.password_file)
    client.username_pw_set(config.username, password)


def _first_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(
            f"cannot read the password: {problem}",
            where=f"mqtt.password_file: {path}",
            remedy="its first line is the password; this user must be able to read it",
        ) from problem
    return lines[0] if lines else ""


TAKEN_OVER = "Session taken over"

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
    "Packet too large": "raise the broker's packet limit or lower report.chunk",
    "Unsupported protocol version": "set mqtt.protocol to the version that the broker speaks",
}


def refusal_remedy(reason: str) -> str:
    """What to do about a reason that the broker gave."""
    return _REFUSALS.get(reason, "see the broker's log")


def failure(problem: OSError, config: MqttConfig) -> tuple[str, str]:
    """Reason and remedy for a connection that did not come about."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"certificate refused: {problem.verify_message}", "check mqtt.tls.ca_file and mqtt.host"
    if isinstance(problem, ssl.SSLError):
        return f"TLS failed: {problem.reason or problem}", f"does port {config.port} speak TLS?"
    if isinstance(problem, ConnectionResetError) and config.tls is not None:
        return "connection reset", f"does port {config.port} speak TLS?"
    if isinstance(problem, socket.gaierror):
        return f"unknown host {config.host}", "check mqtt.host and the name server"
    if isinstance(problem, TimeoutError):
        return "no answer", f"is {config.host}:{config.port} reachable from here?"
    reason = (problem.strerror or str(problem)).lower()
    return reason, f"does a broker listen on {config.host}:{config.port}?"
