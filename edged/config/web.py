"""Section `web`: predictions, metrics and a page over HTTP."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from edged.config.mqtt import LOOPBACK_NAMES
from edged.config.values import AnyPath, FilePath, Name, Section, unique

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[?[0-9A-Fa-f:]+(%[A-Za-z0-9]+)?\]?")


def _host_name(value: str) -> str:
    if _HOST.fullmatch(value) is None:
        raise ValueError(f"{value!r} is not a host name or address: give it without a port")
    return value.lower().strip("[]").rstrip(".")


WebScope = Literal["read", "infer", "control", "scrape", "ingest"]
HostName = Annotated[str, AfterValidator(_host_name)]


class WebTlsConfig(Section):
    """TLS 1.2 or later for the TCP port."""

    cert_file: FilePath = Field(description="certificate, with the chain up to its CA")
    key_file: FilePath = Field(description="its key, without a passphrase")


class WebConfig(Section):
    """Predictions (Open Inference Protocol), metrics and a page over HTTP; off when absent."""

    listen: str | None = Field(
        "127.0.0.1:8080",
        description="address and port; outside of loopback, only paired browsers and tokens have access,"
        " over TLS; null: only the Unix socket",
    )
    unix_socket: AnyPath | None = Field(
        None, description="path of a Unix socket, open without a token to the daemon's account and group"
    )
    tls: WebTlsConfig | None = Field(
        None, description="certificate; if absent and listen is not local, the device makes its own"
    )
    tokens: dict[WebScope, FilePath] = Field(
        {},
        description="files by scope (read, infer, control, scrape, ingest), each with a token of at least 32"
        " characters in its first line",
    )
    allowed_hosts: Annotated[list[HostName], AfterValidator(unique)] = Field(
        [],
        description="further host names that clients can use, besides localhost, listen and, from other"
        " machines, the host's own name and any IP address",
    )
    model_name: Name | None = Field(
        None, description="name of the model in URLs; the device's id when absent"
    )

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
