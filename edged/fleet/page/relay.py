"""Bytes between a browser's websocket and a broker that has none: passed on as they are, kept nowhere.

RFC 6455 is the work of the package `websockets` (extra `fleet-page`), of which this uses the part without
input and output: `server.py` has the connection, whose opening is an HTTP request among others.
"""

from __future__ import annotations

import select
import socket
import ssl
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from edged.errors import BrokerError, ConfigError, UnavailableError

if TYPE_CHECKING:
    from websockets.protocol import Protocol

    from edged.mqtt.control_client import BrokerAddress

CONNECT_SECONDS = 8.0
STUCK_SECONDS = 20.0
"""For so long a side may take nothing; both are cut off then."""
IDLE_SECONDS = 120.0
"""For so long neither side may say anything: the page pings every 20 s."""
PIECE = 65536
LARGEST = 1024 * 1024
"""Bytes of a message that a browser may send: a command has 64 KiB at most."""


class Relay:
    """Connections to one broker, on behalf of browsers: user and password are the browser's.

    ConfigError when a certificate cannot be used, UnavailableError without the package `websockets`.
    """

    def __init__(self, address: BrokerAddress) -> None:
        if find_spec("websockets") is None:
            raise UnavailableError(
                "the package websockets is not installed",
                where="edged fleet ui --broker",
                remedy="pip install 'edged[fleet-page]', or --broker-ws where the broker has websockets",
            )
        if address.websocket is not None:
            raise ConfigError(
                "this broker has a WebSocket, which needs no relay",
                where="edged fleet ui --broker",
                remedy="--broker-ws with this address",
            )
        self.where = f"{address.host}:{address.port}"
        self._address = address
        self._context = address.tls_context() if address.tls else None

    def connect(self) -> socket.socket:
        """Open a connection to the broker; BrokerError when there is none to be had."""
        address = self._address
        try:
            plain = socket.create_connection((address.host, address.port), timeout=CONNECT_SECONDS)
        except OSError as problem:
            raise BrokerError(f"no connection: {problem}", where=self.where) from problem
        plain.settimeout(STUCK_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is None:
            return plain
        try:
            return self._context.wrap_socket(plain, server_hostname=address.host)
        except OSError as problem:
            plain.close()
            raise BrokerError(f"no connection: {problem}", where=self.where) from problem

    @staticmethod
    def pass_on(browser: socket.socket, broker: socket.socket) -> None:
        """Pass bytes on until a side ends, says nothing for `IDLE_SECONDS`, or breaks the protocol."""
        from websockets.protocol import OPEN, SERVER, Protocol

        browser.settimeout(STUCK_SECONDS)
        frames = Protocol(SERVER, max_size=LARGEST)
        with suppress(OSError):  # one of them is gone
            while frames.state is OPEN:
                ready, _, _ = select.select((browser, broker), (), (), IDLE_SECONDS)
                if browser in ready:
                    _from_browser(browser, broker, frames)
                if not ready or (broker in ready and not _from_broker(browser, broker, frames)):
                    frames.send_close(1001)
                browser.sendall(b"".join(frames.data_to_send()))


def _from_broker(browser: socket.socket, broker: socket.socket, frames: Protocol) -> bool:
    """Whether the broker goes on."""
    from websockets.protocol import OPEN

    while frames.state is OPEN:
        # TLS has messages of its own: what makes a socket readable may be nothing to read.
        broker.settimeout(0)
        try:
            data = broker.recv(PIECE)
        except (ssl.SSLWantReadError, BlockingIOError):
            return True
        finally:
            broker.settimeout(STUCK_SECONDS)
        if not data:
            return False
        frames.send_binary(data)
        browser.sendall(b"".join(frames.data_to_send()))
        # What TLS has read already no `select` tells of.
        if not (isinstance(broker, ssl.SSLSocket) and broker.pending()):
            return True
    return True


def _from_browser(browser: socket.socket, broker: socket.socket, frames: Protocol) -> None:
    from websockets.frames import Frame, Opcode

    data = browser.recv(PIECE)
    if not data:
        frames.receive_eof()
        return
    frames.receive_data(data)
    for frame in frames.events_received():
        if isinstance(frame, Frame) and frame.opcode is Opcode.TEXT:
            frames.fail(1003, "MQTT is binary")
            return
        if isinstance(frame, Frame) and frame.opcode in (Opcode.BINARY, Opcode.CONT):
            broker.sendall(frame.data)
