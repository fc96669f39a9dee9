"""`edged fleet ui` as a process of its own."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from edged.workbench.demo.broker import free_port


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Ui(NamedTuple):
    """It listens on `port`."""

    port: int
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str, method: str = "GET", /, **headers: str) -> Answer:
        """One request on a connection of its own; `Host_` names another host."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            link.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                link.putheader(name.replace("_", "-"), value)
            link.endheaders()
            got = link.getresponse()
            names = {name.lower(): value for name, value in got.getheaders()}
            return Answer(got.status, names, got.read() if got.status != 101 else b"")
        finally:
            link.close()


@contextmanager
def fleet_ui(*options: str) -> Iterator[Ui]:
    """It runs for as long as the `with` block lasts."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "edged", "fleet", "ui", "--listen", f"127.0.0.1:{port}", *options],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        assert f"http://127.0.0.1:{port}/" in first, first + process.stderr.read()
        yield Ui(port, process)
    finally:
        process.terminate()
        process.wait(10)
        process.stderr.close()
