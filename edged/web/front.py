"""What the daemon knows of HTTP: sockets that listen when it is ready, and what answers a moment later.

The libraries take 0.1 s and more to import. So tokens, certificates and addresses are looked at before the
daemon is ready, while what is wrong with them still keeps it from starting; the rest is read by the thread
that serves, while the daemon works already. Requests wait in the sockets until then.
"""

from __future__ import annotations

import threading
from collections import deque
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from edged.errors import EdgedError, UnavailableError
from edged.lazily import lazily
from edged.logs import get_logger
from edged.web.access import Tokens
from edged.web.sockets import Sockets

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from edged.config import WebConfig
    from edged.domain.predictions import Predictions
    from edged.steering import Parts
    from edged.web.service import Web

PACKAGES = ("starlette", "uvicorn", "httptools")
END_SECONDS = 2.0
EARLY = 1000  # things told before anything answers that are kept

log = get_logger("edged.web")


def require_packages() -> None:
    """Raise UnavailableError when one of the packages is not installed; none is imported."""
    missing = next((name for name in PACKAGES if find_spec(name) is None), None)
    if missing is not None:
        raise UnavailableError(
            f"the package {missing} is not installed", where="web", remedy="pip install 'edged[web]'"
        )


class Front:
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
        When a package is missing, a token or certificate cannot be used, or an address cannot be listened on.
    """

    def __init__(self, config: WebConfig, parts: Parts) -> None:
        require_packages()
        self._config = config
        self._parts = parts
        self._tokens = Tokens(config.tokens.given)
        self._sockets = Sockets(config)
        self._web: Web | None = None
        self._early: deque[tuple[str, Mapping[str, Any]]] = deque(maxlen=EARLY)
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def listen(self) -> None:
        """Take connections from now on; they wait until `start`."""
        self._sockets.listen()
        log.info("web_listens", port=self._sockets.port, unix_socket=str(self._config.unix_socket or ""))

    def start(self) -> None:
        """Begin to answer, a moment later."""
        self._thread.start()

    def stop(self) -> None:
        """End streams, let requests end for a second, close the sockets."""
        with self._lock:
            self._ended = True
            web = self._web
        if web is not None:
            web.stop()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)
        self._sockets.close()

    def heard(self, name: str, values: Mapping[str, Any]) -> None:
        """What the daemon says of itself; from any thread."""
        with self._lock:
            web = self._web
            if web is None:
                self._early.append((name, values))
        if web is not None:
            web.heard(name, values)

    def predicted(self, payloads: list[bytes]) -> None:
        """Predictions as they are published; on the serving thread."""
        if self._web is not None:
            self._web.predicted(payloads)

    def answered(self, made: Predictions, ids: Sequence[str]) -> None:
        """Samples were answered; on the serving thread."""
        if self._web is not None:
            self._web.answered(made, ids)

    def _run(self) -> None:
        try:
            self._serve()
        except EdgedError as problem:
            log.error("web_failed", problem=problem.line())
        except Exception:
            log.exception("web_failed")
        finally:
            self._sockets.close()

    def _serve(self) -> None:
        # Before uvicorn, which imports them for its command line and for a log of its own.
        lazily("logging.config")
        lazily("uvicorn.main", "Server", "main", "run")

        import asyncio

        from edged.web.service import Web

        web = Web(self._config, self._parts, self._tokens, self._sockets)
        with self._lock:
            for name, values in self._early:
                web.heard(name, values)
            self._early.clear()
            self._web = web
            if self._ended:
                return
        asyncio.run(web.serve())
