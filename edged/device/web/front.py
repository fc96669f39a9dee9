"""The web server as an extension of the daemon: it opens sockets at the start and answers a moment later.

The libraries take 0.1 s and more to import. So tokens and certificates are read and the sockets opened before
the daemon is ready, while a wrong configuration still prevents the start; the thread that answers imports the
libraries while the daemon already works. Requests wait in the sockets until then.

An address that is missing or in use is tried again, and a failed server is started again: the daemon itself
keeps running.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from edged.config import WebConfig
from edged.device.commands.inbox import CommandInbox
from edged.device.events import Extension, Listener
from edged.device.fleet_member.local_rounds import LocalRounds
from edged.device.learning.label_reviews import LabelReviews
from edged.device.live_pipeline import LivePipeline
from edged.device.reporting.status import StatusCollector
from edged.device.reports import Report
from edged.device.web.http.authentication import Tokens
from edged.device.web.http.sockets import Sockets, fingerprint
from edged.domain.judging.predictions import Predictions
from edged.errors import EdgedError, UnavailableError
from edged.lazy_imports import lazily
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.web.service import Site, Web  # imports the libraries


PACKAGES = ("starlette", "uvicorn")
END_SECONDS = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds until a failed server is started again
EARLY = 1000  # reports that are buffered until the application runs

log = get_logger("edged.web")


def require_packages() -> None:
    """Raise UnavailableError if one of the packages is not installed, without importing any."""
    missing = next((name for name in PACKAGES if find_spec(name) is None), None)
    if missing is not None:
        raise UnavailableError(
            f"the package {missing} is not installed", where="web", remedy="pip install 'edged[web]'"
        )


@dataclass(frozen=True)
class WebParts:
    """Section `web` of the configuration, and the parts of the device that answers come from.

    `inbox` receives commands; `rounds` serves programs on this machine, None without `fleet.flower`;
    `reviews` knows which labels may be wrong.
    """

    config: WebConfig
    pipeline: LivePipeline
    status: StatusCollector
    inbox: CommandInbox
    rounds: LocalRounds | None
    reviews: LabelReviews


class WebRelay(Listener):
    """Passes the news of one stream to the web server."""

    def __init__(self, server: WebServer, name: str) -> None:
        self._server, self._name = server, name

    def reported(self, report: Report) -> None:
        """Pass on a report; from any thread."""
        self._server.pass_on(self._name, report)

    def predicted(self, payloads: list[bytes]) -> None:
        """Stream predictions; on the thread that answers."""
        site = self._server.site(self._name)
        if site is not None:
            site.predicted(payloads)

    def answered(self, made: Predictions, keys: Sequence[str], ts: NDArray[Any]) -> None:
        """Pass on the predictions of samples `(n,)`; on the thread that answers."""
        site = self._server.site(self._name)
        if site is not None:
            site.answered(made, keys, ts)


class WebServer(Extension, WebRelay):
    """The web server as an extension with a thread of its own.

    `parts` are those of each stream, by its name; "" is the only one of a device, whose news it passes on.

    Raises EdgedError when a package is missing, or a token or certificate cannot be used.
    """

    def __init__(self, parts: Mapping[str, WebParts]) -> None:
        WebRelay.__init__(self, self, "")
        require_packages()
        self._parts = dict(parts)
        one = next(iter(parts.values()))
        self._config = one.config
        self._tokens = Tokens(one.config.tokens)
        self._sockets = Sockets(one.config, one.pipeline.config.device_dir)
        self._web: Web | None = None
        self._early: deque[tuple[str, Report]] = deque(maxlen=EARLY)
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._problem: str | None = None
        self._pause = FIRST_PAUSE
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    @property
    def problem(self) -> str | None:
        """Why the server does not answer, in one line; None if it does."""
        return self._problem

    def start(self) -> None:
        """Open the sockets, where connections wait until `ready`; a failure is retried from then on."""
        try:
            self._open()
        except EdgedError as problem:
            self._failed(problem.line())

    def ready(self) -> None:
        """Load the libraries, then answer requests."""
        self._thread.start()

    def stop(self) -> None:
        """End event streams, give requests a second to end, close the sockets."""
        with self._lock:
            self._ending.set()
            web = self._web
        if web is not None:
            web.stop()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)
        self._sockets.close()

    def pass_on(self, name: str, report: Report) -> None:
        """Pass on a report of a stream; from any thread."""
        with self._lock:
            site = self.site(name)
            if self._web is None:
                self._early.append((name, report))
        if site is not None:
            site.reported(report)

    def site(self, name: str) -> Site | None:
        """What the application knows of a stream; None before it runs."""
        web = self._web  # once: its thread forgets an application that has failed
        return None if web is None else web.sites.get(name)

    def replace(self, name: str, parts: WebParts | None) -> None:
        """Serve a stream that was added or started again; None: it has ended."""
        with self._lock:
            if parts is None:
                self._parts.pop(name, None)
            else:
                self._parts[name] = parts
            web = self._web
        if web is not None:
            web.replace(name, parts)

    def _open(self) -> None:
        self._sockets.open()
        path = self._config.unix_socket
        log.info("web_listens", port=self._sockets.port, unix_socket=str(path or ""))
        if self._sockets.certificate is not None:
            log.info(
                "web_certificate",
                sha256=fingerprint(self._sockets.certificate[0]),
                remedy="edged web pair CONFIG shows a code for a browser",
            )

    def _failed(self, line: str) -> None:
        if line != self._problem:
            self._problem = line
            log.error("web_failed", problem=line, remedy="edged retries; everything else continues")

    def _run(self) -> None:
        if self._problem is not None:
            self._ending.wait(self._pause)
        while not self._ending.is_set():
            try:
                if not self._sockets.bound:
                    self._open()
                self._serve()
            except EdgedError as problem:
                self._failed(problem.line())
            except Exception as problem:
                log.exception("web_crashed")
                self._failed(f"web: it has failed: {problem!r}"[:200])
            finally:
                self._sockets.close()
            self._ending.wait(self._pause)
            self._pause = min(LONGEST_PAUSE, 2 * self._pause)

    def _serve(self) -> None:
        # Before uvicorn, which imports them for its command line and for a log of its own.
        lazily("logging.config")
        lazily("uvicorn.main", "Server", "main", "run")

        import asyncio

        from edged.device.web.service import Web

        async def run() -> None:
            web = Web(self._parts, self._tokens, self._sockets)
            with self._lock:
                for name, report in self._early:
                    if name in web.sites:
                        web.sites[name].reported(report)
                self._early.clear()
                self._web = web
                if self._ending.is_set():
                    return
            await web.run(self._begun)

        try:
            asyncio.run(run())
        finally:
            with self._lock:
                self._web = None  # later reports are for the next one

    def _begun(self) -> None:
        self._problem, self._pause = None, FIRST_PAUSE
