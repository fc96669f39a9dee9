"""Connections: sockets and their modes, TLS, and clients that want too much or are too slow."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from edged.config import WebConfig
from edged.device.web.http.bodies import MAX_CONNECTIONS, MAX_HEAD
from edged.device.web.http.listener import HttpListener
from edged.device.web.http.routes import UNIX
from edged.device.web.http.sockets import Sockets
from edged.errors import ConfigError, UnavailableError
from tests.certificates import Authority
from tests.device.web.client import UnixConnection
from tests.running_device import wait_until

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

LARGE = 8 * 1024**2


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Says which socket a request came over; `/large` has an answer that fills all buffers."""
    while (await receive()).get("more_body"):
        pass
    body = b"x" * LARGE if scope["path"] == "/large" else str(scope.get(UNIX, False)).encode()
    head = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(limits: dict[str, Any] | None = None, **web: Any) -> Iterator[Sockets]:
    """A listener on a thread of its own, stopped at the end."""
    sockets = Sockets(WebConfig.model_validate({"listen": "127.0.0.1:0"} | web))
    sockets.open()
    listener = HttpListener(app, sockets, **limits or {})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(listener.serve()), daemon=True)
    thread.start()
    try:
        yield sockets
    finally:
        loop.call_soon_threadsafe(listener.stop)
        thread.join(20)
        assert not thread.is_alive()
        loop.close()


def link(sockets: Sockets) -> socket.socket:
    return socket.create_connection(("127.0.0.1", sockets.port or 0), timeout=20)


def closed(one: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    try:
        while piece := one.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


def test_requests_come_over_tcp_and_over_the_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "edged.sock"
    with serving(unix_socket=path) as sockets:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        for connection, told in (
            (UnixConnection(path), b"True"),
            (http.client.HTTPConnection("127.0.0.1", sockets.port or 0), b"False"),
        ):
            for _ in range(3):
                connection.request("GET", "/")
                assert connection.getresponse().read() == told
            connection.request("HEAD", "/")
            assert connection.getresponse().read() == b""
            connection.close()
    assert not path.exists()


def test_a_socket_that_an_earlier_life_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "edged.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with serving(listen=None, unix_socket=path):
        connection = UnixConnection(path)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")
    with pytest.raises(UnavailableError, match="cannot listen"):
        Sockets(WebConfig(unix_socket=path, listen="127.0.0.1:0")).open()
    assert path.read_text() == "precious"


def test_an_address_that_is_taken_is_an_error_of_one_line() -> None:
    with serving() as sockets, pytest.raises(UnavailableError, match=f"127.0.0.1:{sockets.port}"):
        Sockets(WebConfig(listen=f"127.0.0.1:{sockets.port}")).open()


def test_tls_serves_with_our_certificate_and_refuses_old_versions(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("press-7", hosts=("localhost",))
    with serving(tls={"cert_file": certificate, "key_file": key}) as sockets:
        context = ssl.create_default_context(cafile=str(authority.file))
        connection = http.client.HTTPSConnection("localhost", sockets.port, context=context, timeout=20)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        with link(sockets) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert not closed(plain).startswith(b"HTTP/1.1 200")


def test_a_key_that_does_not_belong_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, _ = authority.issue("press-7")
    _, key = authority.issue("press-8")
    tls = {"cert_file": certificate, "key_file": key}
    with pytest.raises(ConfigError, match="certificate or key"):
        Sockets(WebConfig.model_validate({"listen": "127.0.0.1:0", "tls": tls}))


HEADS = {
    "one endless header": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (MAX_HEAD + 70_000),
    "an endless URL": b"GET /" + b"x" * (MAX_HEAD + 70_000),
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "length of nonsense": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -3\r\n\r\n",
    "a name with a space": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))
def test_heads_that_are_too_large_or_ambiguous_are_refused(head: bytes) -> None:
    with serving() as sockets, link(sockets) as one:
        for start in range(0, len(head), 16_384):
            try:
                one.sendall(head[start : start + 16_384])
            except OSError:
                break  # it has been cut off already
        answer = closed(one)
        assert not answer or answer.startswith(b"HTTP/1.1 400")


IMPATIENT = {"patience": 0.3}


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"]
)
def test_who_sends_a_request_too_slowly_is_cut_off(sent: bytes) -> None:
    with serving(IMPATIENT) as sockets, link(sockets) as one:
        one.sendall(sent)
        assert closed(one) == b""


def test_who_sends_a_request_now_and_then_is_not() -> None:
    with serving({"patience": 1.0}) as sockets, link(sockets) as one:
        for _ in range(15):
            assert answered(one)
            threading.Event().wait(0.1)  # this is what is tested: in sum longer than its patience


def test_who_does_not_take_the_answer_is_cut_off() -> None:
    with serving(IMPATIENT) as sockets, socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(20)
        one.connect(("127.0.0.1", sockets.port or 0))
        one.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        threading.Event().wait(1.5)  # this is what is tested: nobody reads
        assert len(closed(one)) < LARGE


def answered(one: socket.socket) -> bool:
    """Whether a request is answered, on a connection that stays open; False where it is closed."""
    received = b""
    try:
        one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while not received.endswith(b"False"):
            piece = one.recv(65536)
            if not piece:
                return False
            received += piece
    except OSError:
        return False
    return received.startswith(b"HTTP/1.1 200")


def test_slow_connections_keep_nobody_out_for_long_and_nobody_out_of_the_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "edged.sock"
    with serving({"patience": 3.0}, unix_socket=path) as sockets:
        slow = [link(sockets) for _ in range(2 * MAX_CONNECTIONS)]
        for one in slow:
            with suppress(OSError):  # those that were too many are closed already
                one.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        local = UnixConnection(path)
        local.request("GET", "/")
        assert local.getresponse().read() == b"True"
        local.close()

        def has_room() -> bool:
            with link(sockets) as quick:
                return answered(quick)

        wait_until(has_room)
        for one in slow:
            one.close()


def test_as_many_connections_as_are_allowed_are_answered_and_no_more_are_open() -> None:
    with serving({"connections": 4}) as sockets:
        held = [link(sockets) for _ in range(4)]
        assert [answered(one) for one in held] == [True] * 4
        for _ in range(3):
            with link(sockets) as beyond:
                assert closed(beyond) == b""
        assert [answered(one) for one in held] == [True] * 4
        held.pop().close()

        def has_room() -> bool:
            held.append(link(sockets))
            return answered(held[-1])

        wait_until(has_room)
        for one in held:
            one.close()
