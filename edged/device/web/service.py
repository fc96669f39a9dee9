"""What serves HTTP: an event loop on a thread beside the daemon's others, which it never holds up."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from edged.device.web.api.commands import Commands
from edged.device.web.api.event_stream import EventStream
from edged.device.web.api.inference import Inference
from edged.device.web.api.metrics import Metrics
from edged.device.web.app import StatusEndpoints, application
from edged.device.web.bridge import ServingBridge
from edged.device.web.http.authentication import Access
from edged.device.web.http.listener import Listener
from edged.device.web.loop_bridge import soon
from edged.device.web.page.history import PageState
from edged.device.web.page.page import Page
from edged.errors import StorageError
from edged.host.vitals import VitalsReader
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from starlette.routing import Route

    from edged.config import WebConfig
    from edged.config.fleet import FleetConfig
    from edged.device.commands import Parts
    from edged.device.fleet_member.local_transport import LocalTransport
    from edged.device.web.http.authentication import Tokens
    from edged.device.web.http.sockets import Sockets
    from edged.device.web.page.baseline import Baseline
    from edged.domain.judging.predictions import Predictions

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
END_SECONDS = 1.0  # for requests that are under way when the device stops
HELPERS = 2  # threads for what may wait for the disk
HISTORY = "page_history"  # in the registry: quality over time, for the next start
KEEP_SECONDS = 3600.0  # between two times that it is written there

log = get_logger("edged.web")


class Web:
    """Everything behind the sockets; `front.py` starts and stops it, and tells it what happens.

    Parameters
    ----------
    config
        Section `web`.
    parts
        Of the daemon.
    tokens
        That open something.
    sockets
        To answer on.
    post
        Where rounds of a fleet are handed in; None where they are not.
    """

    def __init__(
        self, config: WebConfig, parts: Parts, tokens: Tokens, sockets: Sockets, post: LocalTransport | None
    ) -> None:
        access = Access(tokens, closed=not config.is_local, clock=parts.clock)
        limits = config.limits
        self._feed = EventStream(limits.streams)
        self._asking = ServingBridge(
            parts.serving, parts.ingest, most=limits.requests, timeout=config.timeout
        )
        self._inference = Inference(
            config,
            model=config.model_name or parts.config.device.id,
            schema=parts.server.schema,
            server=parts.server,
            asking=self._asking,
        )
        self._metrics = Metrics(parts, self._inference, self._asking)
        self._parts = parts
        self._board = PageState(parts.registry.get_value(HISTORY))
        self._frozen: Baseline | None = None
        self._kept = parts.clock.monotonic()
        app = application(
            access=access,
            hosts=_hosts(config),
            inference=self._inference,
            reports=StatusEndpoints(parts.selfreport.status, self._metrics, self._feed),
            commands=Commands(parts.receive, parts.topics.root, self._feed, config.timeout, self._done),
            feed=self._feed,
            page=Page(parts, self._board, VitalsReader(parts.config.storage.dir)),
            more=[] if post is None else _of_rounds(post, parts.config.fleet, access),
        )
        self._listener = Listener(app, config, sockets)
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = False

    # ---- on any thread -----------------------------------------------------------------------

    def stop(self) -> None:
        """Have `serve` end: streams at once, requests within a second."""
        self._inference.ready = False
        self._ended = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            soon(loop, stop.set)

    def heard(self, name: str, values: Mapping[str, Any]) -> None:
        """What the daemon says of itself; from any thread."""
        self._metrics.heard(name, values)
        if name == "events":
            self._board.happened(values)
        elif name == "metrics":
            self._note(values)
        self._feed.say(name, values)

    def predicted(self, payloads: list[bytes]) -> None:
        """Predictions as they are published; on the serving thread."""
        self._feed.predicted(payloads)

    def answered(self, made: Predictions, ids: Sequence[str], keys: Sequence[str], ts: NDArray[Any]) -> None:
        """Samples `(n,)` were answered; on the serving thread."""
        self._asking.answered(made, ids)
        self._board.answered(keys, ts, ids, made, self._parts.clock.monotonic())

    # ---- what the page remembers -------------------------------------------------------------

    def _note(self, metrics: Mapping[str, Any]) -> None:
        """One more point of quality over time; asking the first model may take a while."""
        loop = self._loop
        if loop is not None:
            soon(loop, loop.run_in_executor, None, self._measure, metrics)

    def _measure(self, metrics: Mapping[str, Any]) -> None:
        live = metrics["live"]
        value = live.get("accuracy", live.get("error"))
        if self._frozen is None:
            from edged.device.web.page.baseline import Baseline

            self._frozen = Baseline(self._parts)
        self._board.measured(metrics["ts"], value, self._frozen.quality())
        if self._parts.clock.monotonic() - self._kept >= KEEP_SECONDS:
            self._keep()

    def _keep(self) -> None:
        """Let the next start go on from what is known; a full disk costs the newest hour of the picture."""
        self._kept = self._parts.clock.monotonic()
        try:
            self._parts.registry.set_value(HISTORY, self._board.kept())
        except StorageError as problem:
            log.warning("history_not_kept", problem=problem.line())

    def _done(self, name: str, request: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """A command that came over HTTP was carried out."""
        if name == "label":
            entries = request.get("labels", [request])
            self._board.labelled([str(entry["id"]) for entry in entries if "id" in entry])
        elif name == "evaluate":
            self._board.evaluated(data)

    # ---- on its own thread -------------------------------------------------------------------

    async def serve(self, begun: Callable[[], None]) -> None:
        """Answer until `stop`; `begun` is called when it does."""
        loop = asyncio.get_running_loop()
        stop = self._stop = asyncio.Event()
        self._loop = loop
        loop.set_default_executor(ThreadPoolExecutor(HELPERS, "web-helper"))
        self._asking.begin()
        self._feed.begin()
        await self._listener.start()
        begun()
        try:
            if not self._ended:
                await stop.wait()
        finally:
            self._keep()
        self._feed.end()
        await self._listener.stop(END_SECONDS)


def _hosts(config: WebConfig) -> set[str]:
    """Names under which the device may be spoken to."""
    address = config.address
    listen = set() if address is None else {address[0].lower()}
    return {*LOCAL_HOSTS, *listen, *config.allowed_hosts}


def _of_rounds(post: LocalTransport, fleet: FleetConfig | None, access: Access) -> list[Route]:
    """The doors for rounds, of which nothing is read where they are closed."""
    from edged.device.web.api.fleet_rounds import RoundEndpoints

    return [] if fleet is None else RoundEndpoints(post, fleet.max_bytes).routes(access)
