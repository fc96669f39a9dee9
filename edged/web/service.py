"""What serves HTTP: an event loop on a thread beside the daemon's others, which it never holds up."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from edged.web.access import Access
from edged.web.app import Reports, application
from edged.web.asking import Asking
from edged.web.commands import Commands
from edged.web.feed import Feed
from edged.web.inference import Inference
from edged.web.listening import Listener
from edged.web.local import soon
from edged.web.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from edged.config import WebConfig
    from edged.domain.predictions import Predictions
    from edged.steering import Parts
    from edged.web.access import Tokens
    from edged.web.sockets import Sockets

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
END_SECONDS = 1.0  # for requests that are under way when the device stops
HELPERS = 2  # threads for what may wait for the disk


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
    """

    def __init__(self, config: WebConfig, parts: Parts, tokens: Tokens, sockets: Sockets) -> None:
        access = Access(tokens, closed=not config.is_local, monotonic=time.monotonic)
        self._feed = Feed(config.max_streams)
        self._asking = Asking(parts.serving, parts.ingest, most=config.max_requests, timeout=config.timeout)
        self._inference = Inference(
            config,
            model=config.model_name or parts.config.device.id,
            schema=parts.server.schema,
            server=parts.server,
            asking=self._asking,
        )
        self._metrics = Metrics(parts, self._inference, self._asking)
        app = application(
            access=access,
            hosts=_hosts(config),
            inference=self._inference,
            reports=Reports(parts.selfreport.status, self._metrics, self._feed),
            commands=Commands(parts.receive, parts.topics.root, self._feed, config.timeout),
            feed=self._feed,
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
        self._feed.say(name, values)

    def predicted(self, payloads: list[bytes]) -> None:
        """Predictions as they are published; on the serving thread."""
        self._feed.predicted(payloads)

    def answered(self, made: Predictions, ids: Sequence[str]) -> None:
        """Samples were answered; on the serving thread."""
        self._asking.answered(made, ids)

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
        if not self._ended:
            await stop.wait()
        self._feed.end()
        await self._listener.stop(END_SECONDS)


def _hosts(config: WebConfig) -> set[str]:
    """Names under which the device may be spoken to."""
    address = config.address
    listen = set() if address is None else {address[0].lower()}
    return {*LOCAL_HOSTS, *listen, *config.allowed_hosts}
