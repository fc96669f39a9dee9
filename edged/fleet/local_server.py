"""HTTP on the loopback interface: the fleet page, and a coordinator's metrics."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from edged.errors import ConfigError, UnavailableError

REQUEST_SECONDS = 20.0

Answer = tuple[int, str, bytes]
"""Status, content type and body."""


def loopback(listen: str) -> tuple[str, int]:
    """Address and port of `HOST:PORT`, which must be this machine's loopback interface.

    Raises ConfigError when it is none, or any other.

    >>> loopback("localhost:8090"), loopback("[::1]:0")
    (('127.0.0.1', 8090), ('::1', 0))
    """
    host, found, port = listen.rpartition(":")
    if not found or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ConfigError("this is no address", where=f"--listen {listen}", remedy="such as 127.0.0.1:8090")
    name = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        inside = ipaddress.ip_address(name).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise ConfigError(
            "this is served without encryption, for this machine alone",
            where=f"--listen {listen}",
            remedy="listen on 127.0.0.1; --out DIR writes the page for a broker or web server with TLS",
        )
    return name, int(port)


class LocalServer(ThreadingHTTPServer):
    """Answers GET by what `answer` makes of a path; `serve_forever` does, until `shutdown`.

    `listen` is an address and port on the loopback interface, port 0 for a free one. Raises UnavailableError
    when the address is taken, which `option` has set.
    """

    daemon_threads = True

    def __init__(
        self,
        listen: tuple[str, int],
        answer: Callable[[str], Answer],
        headers: Mapping[str, str],
        option: str = "--listen",
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self.answer, self.headers = answer, headers
        try:
            super().__init__(listen, _Handler)
        except OSError as problem:
            raise UnavailableError(
                f"cannot listen: {problem.strerror}",
                where=f"{listen[0]}:{listen[1]}",
                remedy=f"{option} names another",
            ) from problem

    @property
    def url(self) -> str:
        """Address of the first page."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        self._send(*self.server.answer(self.path.partition("?")[0]))

    def do_HEAD(self) -> None:
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Send a status with one line of text."""
        self._send(code, "text/plain; charset=utf-8", f"{message or 'refused'}\n".encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        own = {"Content-Type": kind, "Content-Length": str(len(body))}
        self.send_response(status)
        for name, value in {**self.server.headers, **own}.items():
            self.send_header(name, value)
        self.end_headers()
        if getattr(self, "command", "") != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the name without versions."""
        return "edged"

    def log_message(self, *_: object) -> None:
        """Log nothing: requests say nothing that a person needs."""
