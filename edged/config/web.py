"""Section `web`: predictions, metrics and a page over HTTP."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from edged.config.mqtt import LOOPBACK_NAMES
from edged.config.values import Duration, FilePath, Name, Section, Size, unique

_MODE = re.compile(r"0?[0-7]{3}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[?[0-9A-Fa-f:]+(%[A-Za-z0-9]+)?\]?")


def _host_name(value: str) -> str:
    if _HOST.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no name or address of a host: give it without a port")
    return value.lower().strip("[]").rstrip(".")


def _mode(value: str) -> str:
    if _MODE.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no mode of a file such as '0660'; put it in quotes")
    return value


HostName = Annotated[str, AfterValidator(_host_name)]


class WebTlsConfig(Section):
    """TLS 1.2 or later for the TCP port."""

    cert_file: FilePath = Field(description="certificate, with the chain up to its CA")
    key_file: FilePath = Field(description="its key, without a pass phrase")


class WebTokensConfig(Section):
    """Files whose first line is a token of 32 characters or more; each opens what it names, and no more."""

    read_file: FilePath | None = Field(None, description="may look: page, status, events")
    infer_file: FilePath | None = Field(
        None, description="may ask for predictions, record samples and send labels"
    )
    control_file: FilePath | None = Field(None, description="may look, label, train, pause, roll back")
    scrape_file: FilePath | None = Field(None, description="may read /metrics")
    ingest_file: FilePath | None = Field(None, description="may store samples and labels under /v1, no more")

    @property
    def given(self) -> dict[str, Path]:
        """The files that are configured, by the scope that they open."""
        files = {name.removesuffix("_file"): getattr(self, name) for name in type(self).model_fields}
        return {scope: path for scope, path in files.items() if path is not None}


class WebLimitsConfig(Section):
    """Limits of what clients can ask for."""

    body: Size = Field(1024**2, ge=1024, description="largest request, also when it is inflated")
    rows: int = Field(1024, ge=1, le=1_000_000, description="rows of one request")
    requests: int = Field(64, ge=1, description="requests under way; beyond them the answer is 503")
    connections: int = Field(
        128, ge=2, description="open connections, idle ones too; one beyond them is closed without an answer"
    )
    streams: int = Field(20, ge=1, description="open event streams; beyond them the answer is 503")


class WebConfig(Section):
    """Predictions by the Open Inference Protocol, metrics and a page over HTTP; nothing of it without it."""

    listen: str | None = Field(
        "127.0.0.1:8080",
        description="address and port; one that is not of the loopback interface is open to paired browsers"
        " and tokens alone, over TLS; null for the Unix socket alone",
    )
    unix_socket: FilePath | None = Field(
        None, description="path of a Unix socket; no token is needed to use it"
    )
    unix_mode: Annotated[str, AfterValidator(_mode)] = Field("0600", description="who may open it")
    tls: WebTlsConfig | None = Field(
        None, description="certificate; where absent, and listen is not local, the device makes its own"
    )
    tokens: WebTokensConfig = WebTokensConfig()
    allowed_hosts: Annotated[list[HostName], AfterValidator(unique)] = Field(
        [],
        description="names under which browsers and clients may reach it, beside localhost, listen, and from"
        " outside the host's own name and any address",
    )
    model_name: Name | None = Field(None, description="of the model in URLs; the device's id when absent")
    limits: WebLimitsConfig = WebLimitsConfig()
    timeout: Duration = Field(10.0, gt=0, description="longest wait for a prediction or a command's answer")

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
            raise ValueError(f"listen {self.listen!r} is no address and port such as 127.0.0.1:8080")
        return host.strip("[]"), int(port)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.address is None or _is_loopback(self.address[0])

    @model_validator(mode="after")
    def _safe(self) -> WebConfig:
        address = self.address
        if address is None and self.unix_socket is None:
            raise ValueError("there is nothing to listen on: give listen or unix_socket")
        if self.tls is not None and address is None:
            raise ValueError("a Unix socket speaks no TLS: remove web.tls")
        return self


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES
