"""Sections `mqtt`, `discovery` and `sparkplug`: the broker, and how other systems find the device on it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from edged.config.values import Constants, Duration, FilePath, Section

LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


class TlsConfig(Section):
    """TLS 1.2 or later, on if the section is present. edged reads the files again at each connection."""

    ca_file: FilePath | None = Field(None, description="CA certificates; the system's when absent")
    cert_file: FilePath | None = Field(None, description="client certificate")
    key_file: FilePath | None = Field(None, description="key of the client certificate")
    crl_file: FilePath | None = Field(
        None, description="revocation list of the CA: edged rejects a broker whose certificate is on it"
    )
    insecure: bool = Field(False, description="do not verify the broker's host name (testing only)")

    @model_validator(mode="after")
    def _pair(self) -> TlsConfig:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together: give both or neither")
        if self.crl_file is not None and self.ca_file is None:
            raise ValueError("crl_file needs the CA that issued it: set ca_file")
        return self


@dataclass(frozen=True)
class MqttConstants:
    """Values of `MqttConfig` without a key; durations in seconds."""

    session_expiry: float = 7 * 86400.0  # the broker keeps messages for a disconnected device that long
    receive_maximum: int = 2000  # messages in flight (MQTT 5)
    reconnect_max: float = 10.0  # pause between two attempts to connect
    password: str | None = field(default=None, repr=False)  # that no file holds


class MqttConfig(Section, Constants[MqttConstants]):
    """The broker and how to connect to it."""

    _constants: MqttConstants = PrivateAttr(MqttConstants())
    host: str = Field(
        "localhost", min_length=1, description="name or address of the broker; a path is a Unix socket"
    )
    port: int = Field(1883, ge=1, le=65535, description="port of the broker; 8883 is usual with TLS")
    protocol: Literal["5", "3.1.1"] = Field("5", description="MQTT version")
    websocket: str | None = Field(
        None,
        pattern=r"^/[^\s#]*$",
        description="path of the broker's WebSocket, such as /mqtt, if only HTTP ports are open; with `tls`"
        " the scheme is wss; plain TCP when absent",
    )
    username: str | None = Field(
        None, description="user name; the systemd credential `mqtt-username` when absent"
    )
    password_file: FilePath | None = Field(
        None,
        description="file with the password in its first line; the systemd credential `mqtt-password` when"
        " absent",
    )
    insecure: bool = Field(False, description="allow a connection without TLS to a broker on another machine")
    tls: TlsConfig | None = None
    keepalive: Duration = Field(30.0, description="interval between pings", gt=0, le=65535)
    root: str = Field("edged", description="first level of all topics of edged", pattern=r"^[^#+\s]+$")
    client_id: str | None = Field(None, description="edged-<device id> when absent")

    @model_validator(mode="before")
    @classmethod
    def _protocol_as_text(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("protocol"), int | float):
            data = {**data, "protocol": f"{data['protocol']:g}"}
        return data

    @property
    def address(self) -> str:
        """Host and port, or the path of a Unix socket."""
        return self.host if self.host.startswith("/") else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the broker is reached without a network: a Unix socket, or the loopback interface."""
        if self.host.startswith("/"):
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            name = self.host.lower().rstrip(".")
            return name in LOOPBACK_NAMES or name.endswith(".localhost")

    @field_validator("host")
    @classmethod
    def _no_address(cls, host: str) -> str:
        scheme, _, rest = host.rpartition("://")
        name, _, port = rest.strip("/").partition(":")
        if scheme or (port.isdecimal() and not rest.startswith("/")):
            remedy = (
                f"host: {name}"
                + (f", port: {port}" if port else "")
                + (", tls: {}" if scheme == "mqtts" else "")
            )
            raise ValueError(f"expected a name or an address alone, got {host!r}: set {remedy}")
        return host

    @model_validator(mode="after")
    def _nothing_in_plain_text(self) -> MqttConfig:
        if self.tls is None and not self.insecure and not self.is_local:
            raise ValueError(
                f"the connection to {self.host} would be unencrypted:"
                " add mqtt.tls, or insecure: true to allow it"
            )
        if self.tls is not None and self.host.startswith("/"):
            raise ValueError("TLS does not work over a Unix socket: remove mqtt.tls")
        if self.websocket is not None and self.host.startswith("/"):
            raise ValueError("WebSockets do not work over a Unix socket: remove mqtt.websocket")
        return self


class DiscoveryConfig(Section):
    """Discovery by Home Assistant; off when absent, and the next start removes the device there.

    Sensors stand for metrics, buttons for commands.
    """

    prefix: str = Field(
        "homeassistant", description="first level of Home Assistant's own topics", pattern=r"^[^#+/\s]+$"
    )
    name: str | None = Field(
        None, min_length=1, description="name of the device in Home Assistant; its id when absent"
    )


Level = Annotated[str, Field(pattern=r"^[^+/#\x00]+$", max_length=256)]


class SparkplugConfig(Section):
    """The daemon as an edge node of Sparkplug B, over a second connection; off when absent."""

    group: Level = Field(description="group id")
    node: Level | None = Field(None, description="edge node id; the device's when absent")
    aliases: bool = Field(
        True, description="aliases instead of names in NDATA; false: for hosts that do not resolve aliases"
    )
