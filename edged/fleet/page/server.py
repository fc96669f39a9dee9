"""The page on this machine's loopback interface, and the relay beside it."""

from __future__ import annotations

import gzip
import hashlib
import hmac
import ipaddress
import re
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from edged.errors import BrokerError, ConfigError, UnavailableError
from edged.fleet.page.files import START, TYPES, PageSettings, page_files

if TYPE_CHECKING:
    from edged.fleet.page.relay import Relay

MOST_CONNECTIONS = 32
REQUEST_SECONDS = 20.0
_HOST = re.compile(r"(\[[0-9a-f:]+\]|[a-z0-9.-]+?)\.?(:[0-9]{1,5})?")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


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
            "other machines could control devices through this",
            where=f"--listen {listen}",
            remedy="listen on 127.0.0.1; --out DIR writes the page for a broker or web server with TLS",
        )
    return name, int(port)


class PageServer(ThreadingHTTPServer):
    """Serves the page; `serve_forever` does, until `shutdown`.

    `listen` is an address and port on the loopback interface, port 0 for a free one; `settings` go into the
    page. `relay` connects browsers to the broker, under `/mqtt`; without it browsers connect to
    `settings.broker`. `code` is what browsers must show the relay, since it has rights of its own; None for
    nothing.

    Raises UnavailableError when the address is taken.
    """

    daemon_threads = True

    def __init__(
        self,
        listen: tuple[str, int],
        settings: PageSettings,
        relay: Relay | None = None,
        code: str | None = None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
        self.relay, self.code = relay, code
        self.policy = f"{settings.policy}; frame-ancestors 'none'"
        self.files = {f"/{name}": ServedFile(name, body) for name, body in page_files(settings).items()}
        self.files["/"] = self.files[f"/{START}"]
        self.names = {"localhost", "127.0.0.1", "[::1]", f"[{listen[0]}]" if ":" in listen[0] else listen[0]}
        self.free = threading.BoundedSemaphore(MOST_CONNECTIONS)
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
        """Address of the page."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Take a connection, as long as there are not too many."""
        if not self.free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection until it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections; report all other errors."""
        problem = sys.exc_info()[1]
        if not isinstance(problem, OSError):
            super().handle_error(request, client_address)


class ServedFile:
    """A file as it is sent: `body`, `short` (gzip), its type and tag."""

    def __init__(self, name: str, body: bytes) -> None:
        self.body = body
        self.short = gzip.compress(body, 9, mtime=0)
        self.type = TYPES[PurePosixPath(name).suffix]
        self.tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self._is_for_us():
            return
        if path == "/mqtt" and self.server.relay is not None:
            self._relay(self.server.relay)
            return
        if path == "/code" and self.server.code is not None:
            self._answer_code(self.server.code)
            return
        found = self.server.files.get(path)
        if found is None:
            self.send_error(404, "path not found")
        else:
            self._send(found)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _is_for_us(self) -> bool:
        """Whether Host names us: else a foreign name was made to lead here (DNS rebinding)."""
        hosts = self.headers.get_all("Host", [])
        fits = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if fits is None or fits[1] not in self.server.names:
            self.send_error(421, "this is another place")
            return False
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.send_error(400, "a request with a body")
            return False
        return True

    def _answer_code(self, code: str) -> None:
        """Answer 204 for the code from the terminal in `Edged-Code`, else 403."""
        shown = self.headers.get("Edged-Code", "")
        if hmac.compare_digest(shown.encode(), code.encode()):
            self._head(204, {})
        else:
            self.send_error(403, "wrong code")

    def _send(self, found: ServedFile) -> None:
        if self.headers.get("If-None-Match") == found.tag:
            self._head(304, {"ETag": found.tag})
            return
        short = "gzip" in self.headers.get("Accept-Encoding", "")
        body = found.short if short else found.body
        more = {"Content-Encoding": "gzip"} if short else {}
        self._head(
            200,
            {"Content-Type": found.type, "Content-Length": str(len(body)), "ETag": found.tag}
            | {"Vary": "Accept-Encoding"}
            | more,
        )
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | {"Content-Security-Policy": self.server.policy} | headers).items():
            self.send_header(name, value)
        self.end_headers()

    # ---- the relay ---------------------------------------------------------------------------

    def _relay(self, relay: Relay) -> None:
        from websockets.datastructures import Headers
        from websockets.http11 import Request
        from websockets.server import ServerProtocol
        from websockets.typing import Origin, Subprotocol

        self.close_connection = True
        # A page of any site may open websockets to this machine; it cannot choose its Origin.
        opening = ServerProtocol(
            origins=[Origin(f"http://{self.headers['Host']}")], subprotocols=[Subprotocol("mqtt")]
        )
        headers = Headers([(name, value.strip()) for name, value in self.headers.items()])
        answer = opening.accept(Request(self.path, headers))
        refusal = self._refusal(answer.status_code)
        if refusal is not None:
            self.send_error(*refusal)
            return
        try:
            broker = relay.connect()
        except BrokerError as problem:
            sys.stderr.write(f"edged: {problem.line()}\n")
            self.send_error(502, "the broker cannot be reached")
            return
        with broker:
            self.wfile.write(answer.serialize())
            relay.pass_on(self.connection, broker)

    def _refusal(self, status: int) -> tuple[int, str] | None:
        """Why no websocket begins with this request; None where one does.

        `status` is what `websockets` would answer.
        """
        headers = self.headers
        if headers.get("Upgrade", "").lower() != "websocket" or self.command != "GET":
            return 400, "a websocket is expected here"
        if headers.get("Sec-WebSocket-Version") != "13":
            return 426, "version 13 is spoken here"
        if status != 101:
            return status, "cross-site request" if status == 403 else "no opening for mqtt"
        offered = ",".join(headers.get_all("Sec-WebSocket-Protocol", [])).split(",")
        code = self.server.code
        shown = [hmac.compare_digest(w.strip().encode(), code.encode()) for w in offered] if code else [True]
        return None if any(shown) else (403, "the code from the terminal is missing")

    # ---- what the base class would say ---------------------------------------------------------

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Send a status with one line of text."""
        body = f"{message or 'refused'}\n".encode()
        self.close_connection = True
        self._head(
            code, {"Content-Type": TYPES[".txt"], "Content-Length": str(len(body)), "Connection": "close"}
        )
        if getattr(self, "command", "") != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return an empty string: the page names no versions."""
        return "edged"

    def log_message(self, *_: object) -> None:
        """Nothing is logged: requests say nothing that a person needs."""
