"""HTTP connections with limits on their time and memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from uvicorn.config import Config as UvicornConfig
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from edged.device.web.http.guard import STATIC_HEADERS
from edged.device.web.http.routes import UNIX
from edged.device.web.http.sockets import BACKLOG

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from edged.config import WebConfig
    from edged.device.web.http.sockets import Sockets

MOST_HEAD = 32 * 1024  # bytes of a request's line and headers
MOST_HEADERS = 100
REQUEST_SECONDS = 20.0  # for a request to arrive, and for a client to take its answer
IDLE_SECONDS = 60.0  # a connection without requests
LOOK_SECONDS = 5.0


class OneWrite:
    """A transport that sends the head of an answer together with its body: one system call less."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        """Send data; buffer the head of an answer until more follows."""
        if self._head:
            self._head += data
            self.flush()
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
            self._head = data
        elif data:
            self._transport.write(data)

    def flush(self) -> None:
        """Send the head that is buffered."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        """Send buffered data, then close the connection."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """One connection, with limits that uvicorn does not have.

    They concern headers, slow senders and readers, and the number of connections on a socket: beyond `most`
    the one that has kept us waiting longest is closed, of the address that has most of them.

    `since` says when the request that is arriving began, or the client stopped to take its answer, in seconds
    of the event loop; None while we are the ones to act.
    """

    def __init__(self, *arguments: Any, most: int) -> None:
        super().__init__(*arguments)
        self._most = most

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the stall timer; close the connection if there are too many."""
        self._one_write = OneWrite(transport)
        super().connection_made(cast("asyncio.Transport", self._one_write))
        self.since: float | None = self.loop.time()
        self.opened = self.since
        self._head = 0
        self._in_head = True
        if len(self.connections) > self._most:
            self._slowest().transport.abort()

    def _slowest(self) -> Connection:
        """The connection to close where there are too many: this one, if no other is slow."""
        others = (other for other in self.connections if isinstance(other, Connection))
        slow = [other for other in others if other.since is not None]
        held = Counter(other.address for other in slow)
        return min(slow, key=lambda other: (-held[other.address], other.opened), default=self)

    @property
    def address(self) -> str:
        """The address of the client; empty for a Unix socket."""
        return self.client[0] if self.client else ""

    def data_received(self, data: bytes) -> None:
        """Process more of a request; reject a head that is too large."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head += len(data)
            if self._head > MOST_HEAD:
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """Start the stall timer: a request begins."""
        super().on_message_begin()
        self.since = self.loop.time()
        self._head, self._in_head = 0, True

    def on_headers_complete(self) -> None:
        """Check the size of the complete head."""
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MOST_HEAD or len(self.headers) > MOST_HEADERS:
            raise ValueError("too large")  # answered with 400, as what cannot be parsed
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Clear the stall timer: the request is complete."""
        self.since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Send a buffered head: the answer to HEAD has no body."""
        self._one_write.flush()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the stall timer: the client does not accept data."""
        self.since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Clear the stall timer: the client accepts data again."""
        self.since = None
        super().resume_writing()


class HttpListener:
    """Accepts connections for an application on open sockets; closes them when it is stopped."""

    def __init__(self, app: ASGIApp, config: WebConfig, sockets: Sockets) -> None:
        self._config = config
        self._app = app
        self._sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._states: list[ServerState] = []
        self._sweep: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Accept connections on all sockets."""
        loop = asyncio.get_running_loop()
        protocol = UvicornConfig(
            self._app, http=Connection, ws="none", lifespan="off", interface="asgi3", log_config=None,
            access_log=False, proxy_headers=False, timeout_keep_alive=int(IDLE_SECONDS),
        )  # fmt: skip
        protocol.load()
        limits = self._config.limits
        for bound, path in self._sockets.bound:
            # One for each socket: connections from the network must not take those of this machine.
            state = ServerState()
            state.default_headers = list(STATIC_HEADERS)
            self._states.append(state)
            make = partial(Connection, protocol, state, {UNIX: path is not None}, most=limits.connections)
            context = self._sockets.tls if path is None else None
            handshake = None if context is None else REQUEST_SECONDS
            self._servers.append(
                await loop.create_server(
                    make, sock=bound, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=handshake
                )
            )
        self._look()

    def _connections(self) -> list[Any]:
        return [connection for state in self._states for connection in state.connections]

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time() - REQUEST_SECONDS
        for connection in self._connections():
            since = getattr(connection, "since", None)
            if since is not None and since < before:
                connection.transport.abort()
        self._sweep = loop.call_later(LOOK_SECONDS, self._look)

    async def stop(self, seconds: float) -> None:
        """Stop accepting, give open requests `seconds` to end, then close all connections."""
        loop = asyncio.get_running_loop()
        if self._sweep is not None:
            self._sweep.cancel()
        for server in self._servers:
            server.close()
        for connection in self._connections():
            connection.shutdown()
        until = loop.time() + seconds
        while (tasks := {task for state in self._states for task in state.tasks}) and loop.time() < until:
            await asyncio.wait(tasks, timeout=until - loop.time())
        for connection in self._connections():
            connection.transport.abort()
        self._sockets.close()
