"""Uvicorn on the sockets of the section `web`, with limits on connections that it does not have."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config as UvicornConfig
from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from edged.device.web.http.bodies import CLIENT_SECONDS, MAX_CONNECTIONS, MAX_HEAD
from edged.device.web.http.guard import STATIC_HEADERS
from edged.device.web.http.routes import UNIX
from edged.device.web.http.sockets import BACKLOG, Sockets

LOOK_SECONDS = 5.0  # between two looks at connections that wait for their clients
END_SECONDS = 1.0  # for requests that are in progress when the server stops


class HttpListener:
    """Serves an application on open sockets, each with a server and a number of connections of its own.

    Connections from the network cannot take the place of those of this machine.
    """

    def __init__(
        self,
        app: ASGIApp,
        sockets: Sockets,
        *,
        connections: int = MAX_CONNECTIONS,
        patience: float = CLIENT_SECONDS,
    ) -> None:
        self._app = app
        self._sockets = sockets
        self._most = connections
        self._patience = patience
        self._servers: list[Server] = []

    async def serve(self) -> None:
        """Answer requests until `stop`; requests in progress then have `END_SECONDS` to end."""
        bound = self._sockets.bound
        self._servers = [Server(self._config(local=path is not None)) for _, path in bound]
        sweep = asyncio.ensure_future(self._sweep())
        try:
            pairs = zip(self._servers, bound, strict=True)
            await asyncio.gather(*(server.serve([one]) for server, (one, _) in pairs))
        finally:
            sweep.cancel()
            self._sockets.close()

    def stop(self) -> None:
        """Have `serve` end; on the event loop."""
        for server in self._servers:
            server.should_exit = True

    def _config(self, *, local: bool) -> UvicornConfig:
        certificate = None if local else self._sockets.certificate
        return UvicornConfig(
            _mark_local(self._app) if local else self._app,
            http=cast("Any", self._connection),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            headers=STATIC_HEADERS,
            backlog=BACKLOG,
            timeout_keep_alive=int(CLIENT_SECONDS),
            timeout_graceful_shutdown=int(END_SECONDS),
            h11_max_incomplete_event_size=MAX_HEAD,
            ssl_certfile=None if certificate is None else certificate[0],
            ssl_keyfile=None if certificate is None else certificate[1],
        )

    def _connection(self, **given: Any) -> asyncio.Protocol:
        """Return the protocol of a new connection; one that closes it where there are too many."""
        if len(given["server_state"].connections) >= self._most:
            return _Refused()
        return H11Protocol(**given)

    async def _sweep(self) -> None:
        """Close connections whose client has let us wait too long: uvicorn gives most of them for ever."""
        since: dict[Any, tuple[Any, float]] = {}
        while True:
            now = asyncio.get_running_loop().time()
            connections: list[Any] = [
                one for server in self._servers for one in server.server_state.connections
            ]
            waiting = {one: one.cycle for one in connections if _waits_for_client(one)}
            since = {
                one: since[one] if one in since and since[one][0] is request else (request, now)
                for one, request in waiting.items()
            }
            for one, (_, first) in since.items():
                if now - first >= self._patience:
                    one.transport.abort()
            await asyncio.sleep(min(LOOK_SECONDS, self._patience))


class _Refused(asyncio.Protocol):
    """A connection beyond the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it."""
        cast("asyncio.Transport", transport).abort()


def _waits_for_client(connection: Any) -> bool:
    """Whether a request, the rest of one, or the client's reading of the answer is missing."""
    request = connection.cycle
    if request is None or request.response_complete or request.more_body:
        return True
    return bool(connection.flow.write_paused or connection.transport.is_closing())


def _mark_local(app: ASGIApp) -> ASGIApp:
    """Return the application for a Unix socket: a request of it is from this machine."""

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, UNIX: True}, receive, send)

    return marked
