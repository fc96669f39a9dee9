"""The thread that serves HTTP: an event loop beside the daemon's other threads, which it never holds up."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from edged.errors import EdgedError
from edged.logs import get_logger
from edged.web.access import Access, Tokens
from edged.web.app import Reports, application
from edged.web.asking import Asking
from edged.web.commands import Commands
from edged.web.feed import Feed
from edged.web.inference import Inference
from edged.web.listening import Listener
from edged.web.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edged.config import WebConfig
    from edged.domain.predictions import Predictions
    from edged.steering import Parts

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
END_SECONDS = 1.0  # for requests that are under way when the device stops
HELPERS = 2  # threads for what may wait for the disk

log = get_logger("edged.web")


class Web:
    """What the daemon starts and stops, and tells what happens.

    Parameters
    ----------
    config
        Section `web`.
    parts
        Of the daemon.

    Raises
    ------
    EdgedError
        When a token cannot be used or an address cannot be listened on.
    """

    def __init__(self, config: WebConfig, parts: Parts) -> None:
        self._config = config
        access = Access(Tokens(config.tokens.given), closed=not config.is_local, monotonic=time.monotonic)
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
        self._listener = Listener(app, config)
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    # ---- what the daemon calls ---------------------------------------------------------------

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        self._up.wait()
        log.info("web_listens", port=self._listener.port, unix_socket=str(self._config.unix_socket or ""))

    def stop(self) -> None:
        """End streams, let requests end for a second, close the sockets."""
        loop, stop = self._loop, self._stop
        if loop is None or stop is None:
            return
        self._inference.ready = False
        loop.call_soon_threadsafe(stop.set)
        self._thread.join(2 * END_SECONDS)

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

    # ---- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except EdgedError as problem:
            log.error("web_failed", problem=problem.line())
        except Exception:
            log.exception("web_failed")
        finally:
            self._up.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._loop.set_default_executor(ThreadPoolExecutor(HELPERS, "web-helper"))
        self._asking.begin()
        self._feed.begin()
        await self._listener.start()
        self._up.set()
        await self._stop.wait()
        self._feed.end()
        await self._listener.stop(END_SECONDS)


def _hosts(config: WebConfig) -> set[str]:
    """Names under which the device may be spoken to."""
    address = config.address
    listen = set() if address is None else {address[0].lower()}
    return {*LOCAL_HOSTS, *listen, *config.allowed_hosts}
