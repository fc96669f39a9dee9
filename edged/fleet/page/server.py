"""The page's files, with the broker's address in them, and a server of them on this machine."""

from __future__ import annotations

import html
import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from string import Template
from urllib.parse import urlsplit

from edged.charts.html import DESIGN, design
from edged.errors import ConfigError, StorageError, UnavailableError

FOLDER = Path(__file__).with_name("static")
START = "index.html"
REQUEST_SECONDS = 20.0
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_PLACE = re.compile(r"wss?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(:[0-9]+)?(/[A-Za-z0-9._~/-]*)?")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class PageSettings:
    """Settings that the page receives; ConfigError if the address or the root is invalid."""

    broker: str = ""  # `ws://` or `wss://` address; empty for the place that the page itself came from
    root: str = "edged"  # first level of all topics

    def __post_init__(self) -> None:
        if self.broker and _PLACE.fullmatch(self.broker) is None:
            raise ConfigError(
                "this is no address for websockets",
                where=self.broker.partition("@")[2] or self.broker,
                remedy="write ws://host:port/path, or wss://; user and password are asked in the page",
            )
        if not self.root or any(sign in self.root for sign in "+#\0"):
            raise ConfigError("topics cannot start with this", where=self.root or "--root")

    @property
    def policy(self) -> str:
        """The content security policy: own files, and one connection."""
        place = urlsplit(self.broker)
        connect = f"{place.scheme}://{place.netloc}" if self.broker else "'self'"
        return (
            f"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src {connect};"
            " base-uri 'none'; form-action 'none'"
        )


def page_files(settings: PageSettings) -> dict[str, bytes]:
    """Contents of all files by their names."""
    files = {path.name: path.read_bytes() for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}
    files[DESIGN] = design().encode()
    values = {"policy": settings.policy, "broker": settings.broker, "root": settings.root}
    page = Template(files[START].decode()).substitute(
        {name: html.escape(value) for name, value in values.items()}
    )
    return files | {START: page.encode()}


def write_files(settings: PageSettings, folder: Path) -> list[str]:
    """Write the page into a folder, for a broker or a web server that serves it; return the file names.

    Raises StorageError when they cannot be written.
    """
    files = page_files(settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as problem:
        raise StorageError(f"cannot be written: {problem.strerror}", where=str(folder)) from problem
    return list(files)


# ---- the server ------------------------------------------------------------------------------


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


class PageServer(ThreadingHTTPServer):
    """Serves the page's files; `serve_forever` does, until `shutdown`.

    `listen` is an address and port on the loopback interface, port 0 for a free one. Raises UnavailableError
    when the address is taken.
    """

    daemon_threads = True

    def __init__(self, listen: tuple[str, int], settings: PageSettings) -> None:
        self.address_family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self.files = page_files(settings)
        policy = f"{settings.policy}; frame-ancestors 'none'"
        self.headers: Mapping[str, str] = {**_HEADERS, "Content-Security-Policy": policy}
        try:
            super().__init__(listen, _Handler)
        except OSError as problem:
            raise UnavailableError(
                f"cannot listen: {problem.strerror}",
                where=f"{listen[0]}:{listen[1]}",
                remedy="--listen names another",
            ) from problem

    @property
    def url(self) -> str:
        """Address of the first page."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/") or START
        if name in self.server.files:
            self._send(200, TYPES[PurePosixPath(name).suffix], self.server.files[name])
        else:
            self._send(404, TYPES[".txt"], b"path not found\n")

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
