"""MQTT over WebSocket (MQTT 5.0, section 6; RFC 6455): a socket that carries bytes in binary frames.

Imported where it is configured, and the package websockets, which makes and reads the frames, is installed.
"""

from __future__ import annotations

import contextlib
import socket

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import CONNECTING, OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

CHUNK = 64 * 1024
LARGEST = 32 * 1024 * 1024


class HandshakeError(ConnectionError):
    """What answers is no WebSocket that takes MQTT."""


class WebSocket:
    """A connected socket, used as one: `recv` and `send` as the socket below, TLS or not, blocking or not.

    Raises HandshakeError when the other side speaks no WebSocket on `path`.
    """

    def __init__(self, sock: socket.socket, host: str, port: int, path: str, *, tls: bool) -> None:
        name = f"[{host}]" if ":" in host else host
        uri = parse_uri(f"{'wss' if tls else 'ws'}://{name}:{port}{path}")
        self._sock = sock
        self._frames = ClientProtocol(uri, subprotocols=[Subprotocol("mqtt")], max_size=LARGEST)
        self._in = bytearray()
        self._out = bytearray()
        self._framed = 0  # bytes that `send` was given and has not reported as sent
        try:
            self._frames.send_request(self._frames.connect())
            self.sendall(b"")
            while self._frames.state is CONNECTING and self._frames.handshake_exc is None:
                self._feed(self._sock.recv(4096))
        except OSError as problem:
            self._sock.close()
            if isinstance(problem, ConnectionError):
                raise HandshakeError(f"no WebSocket: {problem.strerror}") from problem
            raise
        if self._frames.handshake_exc is not None:
            self._sock.close()
            raise HandshakeError(f"no WebSocket: {self._frames.handshake_exc}")

    def _feed(self, data: bytes) -> None:
        if data:
            self._frames.receive_data(data)
        else:
            self._frames.receive_eof()
        for event in self._frames.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT):
                self._in += event.data
        self._out += b"".join(self._frames.data_to_send())
        if self._out:  # an answer to a ping; what has no room now goes with the next message
            with contextlib.suppress(OSError):
                self._write()

    def recv(self, size: int) -> bytes:
        """At most `size` bytes of MQTT; `b""` once the connection is over. More may be `pending`."""
        if not self._in:
            self._feed(self._sock.recv(max(size, CHUNK)))
        if not self._in and self._frames.state is OPEN:
            raise BlockingIOError
        piece = bytes(self._in[:size])
        del self._in[:size]
        return piece

    def _write(self) -> None:
        del self._out[: self._sock.send(self._out)]

    def send(self, data: bytes | bytearray) -> int:
        """How much of `data` was sent: all, or 0, and then `data` is to begin with the same bytes again."""
        if not self._framed:
            self._frames.send_binary(bytes(data))
            self._framed = len(data)
            self._out += b"".join(self._frames.data_to_send())
        if self._out:
            self._write()
        if self._out:
            return 0
        sent, self._framed = self._framed, 0
        return sent

    def sendall(self, data: bytes | bytearray) -> None:
        """Send what waits and `data`, of which `send` may have framed a part."""
        if rest := bytes(data[self._framed :]):
            self._frames.send_binary(rest)
        self._sock.sendall(self._out + b"".join(self._frames.data_to_send()))
        self._out.clear()
        self._framed = 0

    def pending(self) -> int:
        """Bytes that are here already and that a selector cannot see."""
        decrypted = getattr(self._sock, "pending", None)
        return len(self._in) or (decrypted() if decrypted is not None else 0)

    def close(self) -> None:
        """Say goodbye where there is room for it, and close."""
        if self._frames.state is OPEN:
            self._frames.send_close(1000)
            with contextlib.suppress(OSError):
                self.sendall(b"")
        self._sock.close()

    def fileno(self) -> int:
        """File descriptor for a selector."""
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        """Set the blocking mode of the socket."""
        self._sock.setblocking(flag)

    def settimeout(self, seconds: float | None) -> None:
        """Set how long a call may wait."""
        self._sock.settimeout(seconds)
