"""Section `web`: predictions, metrics and a page over HTTP."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from edged.config.mqtt import LOOPBACK_NAMES
from edged.config.values import Duration, FilePath, Name, Section, Size, all_defaults, unique

_MODE = re.compile(r"0?[0-7]{3}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[?[0-9A-Fa-f:]+(%[A-Za-z0-9]+)?\]?")


def _host_name(value: str) -> str:
    if _HOST.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not a host name or address: give it without a port")
    return value.lower().strip("[]").rstrip(".")


def _mode(value: str) -> str:
    if _MODE.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not a file mode such as '0660'; put it in quotes")
    return value


HostName = Annotated[str, AfterValidator(_host_name)]


class WebTlsConfig(Section):
    """TLS 1.2 or later for the TCP port."""

    cert_file: FilePath = Field(description="certificate, with the chain up to its CA")
    key_file: FilePath = Field(description="its key, without a passphrase")


class WebTokensConfig(Section):
    """Files with a token of at least 32 characters in the first line; each token grants one scope."""

    read_file: FilePath | None = Field(None, description="read: page, status, events")
    infer_file: FilePath | None = Field(None, description="request predictions, record samples, send labels")
    control_file: FilePath | None = Field(None, description="read, label, train, pause, roll back")
    scrape_file: FilePath | None = Field(None, description="read /metrics")
    ingest_file: FilePath | None = Field(None, description="only store samples and labels under /v1")

    @property
    def given(self) -> dict[str, Path]:
        """The files that are configured, by the scope that they open."""
        files = {name.removesuffix("_file"): getattr(self, name) for name in type(self).model_fields}
        return {scope: path for scope, path in files.items() if path is not None}


class WebLimitsConfig(Section):
    """Limits for clients of the web interface."""

    body: Size = Field(1024**2, ge=1024, description="maximum size of a request, also inflated")
    rows: int = Field(1024, ge=1, le=1_000_000, description="maximum rows in one request")
    requests: int = Field(64, ge=1, description="maximum requests in progress; further ones get 503")
    connections: int = Field(
        128,
        ge=2,
        description="maximum open connections, idle ones included; further ones are closed"
        " without a response",
    )
    streams: int = Field(20, ge=1, description="maximum open event streams; further ones get 503")


class WebConfig(Section):
    """Predictions (Open Inference Protocol), metrics and a page over HTTP; off when absent."""

    listen: str | None = Field(
        "127.0.0.1:8080",
        description="address and port; outside of loopback, only paired browsers and tokens have access,"
        " over TLS; null: only the Unix socket",
    )
    unix_socket: FilePath | None = Field(None, description="path of a Unix socket, which needs no token")
    unix_mode: Annotated[str, AfterValidator(_mode)] = Field(
        "0600", description="file mode of the Unix socket"
    )
    tls: WebTlsConfig | None = Field(
        None, description="certificate; if absent and listen is not local, the device makes its own"
    )
    tokens: WebTokensConfig = all_defaults()
    allowed_hosts: Annotated[list[HostName], AfterValidator(unique)] = Field(
        [],
        description="further host names that clients can use, besides localhost, listen and, from other"
        " machines, the host's own name and any IP address",
    )
    model_name: Name | None = Field(
        None, description="name of the model in URLs; the device's id when absent"
    )
    limits: WebLimitsConfig = all_defaults()
    timeout: Duration = Field(10.0, gt=0, description="maximum wait for a prediction or a command's response")

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of `listen`.

        >>> WebConfig(listen="[::1]:80").address
        ('::1', 80)
        """
        if self.listen is None:
            return None
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise ValueError(f"listen {self.listen!r} is not an address and port such as 127.0.0.1:8080")
        return host.strip("[]"), int(port)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.address is None or _is_loopback(self.address[0])

    @model_validator(mode="after")
    def _safe(self) -> WebConfig:
        address = self.address
        if address is None and self.unix_socket is None:
            raise ValueError("there is nothing to listen on: set listen or unix_socket")
        if self.tls is not None and address is None:
            raise ValueError("TLS does not work over a Unix socket: remove web.tls")
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES
