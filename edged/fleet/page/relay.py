"""Bytes between a browser's websocket and a broker that has none: passed on as they are, kept nowhere."""

from __future__ import annotations

import select
import socket
import ssl
from typing import TYPE_CHECKING

from edged.errors import BrokerError
from edged.fleet.page import websocket

if TYPE_CHECKING:
    from edged.mqtt.control_client import BrokerAddress

CONNECT_SECONDS = 8.0
STUCK_SECONDS = 20.0
"""For so long a side may take nothing; both are cut off then."""
IDLE_SECONDS = 120.0
"""For so long neither side may say anything: the page pings every 20 s."""
PIECE = 65536


class Relay:
    """Connections to one broker, on behalf of browsers.

    Parameters
    ----------
    address
        The broker, and whom to trust and what certificate to show; user and password are the browser's.

    Raises
    ------
    ConfigError
        When a certificate cannot be used.
    """

    def __init__(self, address: BrokerAddress) -> None:
        self.where = f"{address.host}:{address.port}"
        self._address = address
        self._context = address.tls_context() if address.tls else None

    def connect(self) -> socket.socket:
        """Open a connection to the broker.

        Raises
        ------
        BrokerError
            When there is none to be had.
        """
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
        """Until one of them ends, says nothing for long, or breaks the protocol."""
        browser.settimeout(STUCK_SECONDS)
        try:
            code = _pump(browser, broker)
        except websocket.FrameError as problem:
            code = problem.code
        except OSError:
            return  # one of them is gone
        try:
            browser.sendall(websocket.close_frame(code))
        except OSError:
            return


def _pump(browser: socket.socket, broker: socket.socket) -> int:
    """The code for the closing frame."""
    frames = websocket.Frames()
    while True:
        ready, _, _ = select.select((browser, broker), (), (), IDLE_SECONDS)
        if not ready:
            return 1001
        if broker in ready and not _from_broker(browser, broker):
            return 1001
        if browser in ready and not _from_browser(browser, broker, frames):
            return 1000


def _from_broker(browser: socket.socket, broker: socket.socket) -> bool:
    while True:
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
        browser.sendall(websocket.frame(websocket.BINARY, data))
        # What TLS has read already no `select` tells of.
        if not (isinstance(broker, ssl.SSLSocket) and broker.pending()):
            return True


def _from_browser(browser: socket.socket, broker: socket.socket, frames: websocket.Frames) -> bool:
    data = browser.recv(PIECE)
    if not data:
        return False
    for opcode, payload in frames.feed(data):
        if opcode == websocket.CLOSE:
            return False
        if opcode == websocket.PING:
            browser.sendall(websocket.frame(websocket.PONG, payload))
        elif opcode != websocket.PONG:
            broker.sendall(payload)
    return True
