"""A plain HTTP client over TCP or a Unix socket, and a device that listens to it."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.running_device import Device

SCOPES = ("read", "infer", "control", "scrape", "ingest")
TOKENS = {scope: f"{scope}-" + "0123456789abcdef" * 2 for scope in SCOPES}
MODEL = "rig"
INFER = f"/v2/models/{MODEL}/infer"
NUMBERS = count(1)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    """One connection after another, each for one request, from the address `source`."""

    port: int
    unix: Path | None = None
    headers: dict[str, str] = field(default_factory=dict)
    source: str = "127.0.0.1"

    def connection(self) -> http.client.HTTPConnection:
        if self.unix is not None:
            return UnixConnection(self.unix)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20, source_address=(self.source, 0))

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request; `body` is bytes, or what becomes JSON. Underscores in header names are hyphens."""
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent = {"content-type": "application/json"} | sent
        link = self.connection()
        try:
            link.request(method, path, body, sent)
            response = link.getresponse()
            told = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, told, response.read())
        finally:
            link.close()

    def using(self, token: str) -> Client:
        """The same with a token."""
        return replace(self, headers={"authorization": f"Bearer {token}"})

    def elsewhere(self, source: str = "127.0.0.9") -> Client:
        """The same from another address, which may be slowed down for its wrong tokens."""
        return replace(self, source=source)


def rows(x: list[list[float]], **more: Any) -> dict[str, Any]:
    """An inference request."""
    data = [value for row in x for value in row]
    tensor = {"name": "x", "shape": [len(x), len(x[0])], "datatype": "FP32", "data": data}
    return {"inputs": [tensor], **more}


def store(client: Client, x: list[list[float]], key: str = "http") -> list[str]:
    """Store samples under new ids, and return these; for a stream of the fields `x` and `id`."""
    ids = [f"own-{next(NUMBERS)}" for _ in x]
    records = [{"x": row, "id": name} for row, name in zip(x, ids, strict=True)]
    answer = client("POST", f"/v1/samples?topic=sensors/{quote(key, safe='')}", records)
    assert (answer.status, answer.json) == (200, {"accepted": len(x), "passed_over": 0}), answer
    return ids


def token_files(folder: Path, scopes: tuple[str, ...] = SCOPES) -> dict[str, str]:
    """Files with tokens, as the section `web.tokens` names them."""
    for scope in scopes:
        (folder / f"{scope}.token").write_text(TOKENS[scope] + "\n")
    return {scope: str(folder / f"{scope}.token") for scope in scopes}


def web_device(folder: Path, broker: int, port: int, web: dict[str, Any], **sections: Any) -> Device:
    """A classifier of two features with the section `web`."""
    return Device(
        folder,
        broker,
        {"features": 2, "classes": ["low", "high"], "id": "id"},
        web={"listen": f"127.0.0.1:{port}"} | web,
        training={"new_labels": 30, "every": None},
        gate={"min_gain": -1, "max_regret": 1, "min_holdout": 1, "holdout": 0.2, "probation": 0},
        **sections,
    )
