"""What happens on the device, as server-sent events (WHATWG HTML, section 9.2) for pages that stay open.

Names of events are topics below the device's own: `state/model`, `events`, `metrics`, `predictions`,
`response/train`. A stream begins with how things stand: the newest of each state, and of the metrics. A
browser that comes back (`Last-Event-ID`) gets the events that it has missed, as far as they are still here;
`?since=0` asks for all of them.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from edged.device.web.http.errors import HttpError
from edged.device.web.loop_bridge import soon
from edged.domain.messages.encoding import json_ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

KEPT = 200  # events, for browsers that come back
BEHIND = 500  # messages that one reader may be behind; then it has to begin anew
RECENT = 50  # predictions shown at a time, the newest
PREDICTIONS_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0
PRELUDE = b"retry: 2000\n\n"
EVENT_STREAM = "text/event-stream"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class StreamEvent:
    """One event of the stream, as it goes over the wire."""

    __slots__ = ("name", "number", "wire")

    def __init__(self, name: str, values: Any, number: int) -> None:
        self.name = name
        self.number = number
        text = json.dumps(json_ready(values), separators=(",", ":"), default=float)
        self.wire = f"id: {number}\nevent: {name}\ndata: {text}\n\n".encode()


class StreamReader:
    """One open stream: what it still has to send."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self._waiting: deque[bytes] = deque()
        self.ready = asyncio.Event()
        self.over = False

    def wants(self, name: str) -> bool:
        """Whether it asked for events of this name: `state` stands for all that begin with it."""
        return not self._wanted or name in self._wanted or name.partition("/")[0] in self._wanted

    def put(self, message: StreamEvent) -> None:
        """Have it sent; a reader that does not keep up is ended, and comes back by itself."""
        if self.over or not self.wants(message.name):
            return
        self._waiting.append(message.wire)
        if len(self._waiting) > BEHIND:
            self.end()
        self.ready.set()

    def take(self) -> bytes:
        """All that waits."""
        taken = b"".join(self._waiting)
        self._waiting.clear()
        self.ready.clear()
        return taken

    def end(self) -> None:
        """Let it end; what waits is not sent any more."""
        self.over = True
        self._waiting.clear()
        self.ready.set()


class _Stream(StreamingResponse):
    """An open stream; `ended` is called in every case, also when the client leaves before it has begun."""

    def __init__(self, lines: AsyncIterator[bytes], ended: Callable[[], None]) -> None:
        super().__init__(lines, headers=HEADERS, media_type=EVENT_STREAM)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def _head() -> Response:
    """What a stream would begin with, for HEAD: nothing comes behind it, so no stream is opened."""
    response = Response(None, 200, HEADERS, EVENT_STREAM)
    del response.headers["content-length"]
    return response


class EventStream:
    """Gives what the daemon says to all open streams, `most` at a time; costs next to nothing without any.

    `begin` is called on the event loop; `say` and `predicted` may be called from any thread, also before.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers: set[StreamReader] = set()
        self._states: dict[str, StreamEvent] = {}
        self._events: deque[StreamEvent] = deque(maxlen=KEPT)
        self._recent: deque[bytes] = deque(maxlen=RECENT)
        self._number = 0
        self._early: list[tuple[str, Mapping[str, Any]]] = []
        self._ticking = False
        self._ended = False

    @property
    def streams(self) -> int:
        """Streams that are open."""
        return len(self._readers)

    # ---- what the daemon says (any thread) ----------------------------------------------------

    def say(self, name: str, values: Mapping[str, Any]) -> None:
        """Something was said, under the name of its topic."""
        loop = self._loop
        if loop is None:
            self._early.append((name, values))
        else:
            soon(loop, self._publish, name, values)

    def predicted(self, payloads: list[bytes]) -> None:
        """Predictions as they are published; streams get the newest of them, twice a second."""
        self._recent.extend(payloads[-RECENT:])

    # ---- the event loop -----------------------------------------------------------------------

    def begin(self) -> None:
        """From now on there may be streams."""
        self._loop = asyncio.get_running_loop()
        early, self._early = self._early, []
        for name, values in early:
            self._publish(name, values)

    def end(self) -> None:
        """End all streams, and open no more."""
        self._ended = True
        for reader in self._readers:
            reader.end()

    def _publish(self, name: str, values: Any) -> None:
        self._number += 1
        message = StreamEvent(name, values, self._number)
        if name == "events" or name.startswith("response/"):
            self._events.append(message)
        elif name != "predictions":
            self._states[name] = message
        for reader in self._readers:
            reader.put(message)

    def _tick(self) -> None:
        """Pass predictions on, while there is anybody to read them."""
        self._ticking = bool(self._readers)
        if not self._ticking:
            return
        recent = [self._recent.popleft() for _ in range(len(self._recent))]
        if recent and any(reader.wants("predictions") for reader in self._readers):
            self._publish("predictions", [json.loads(payload) for payload in recent])
        asyncio.get_running_loop().call_later(PREDICTIONS_SECONDS, self._tick)

    async def stream(self, request: Request) -> Response:
        """Endpoint: an event stream. `?topics=events,state` chooses, all without it."""
        if self._ended:
            raise HttpError(503, "the device is stopping", kind="stopping")
        if len(self._readers) >= self._most:
            raise HttpError(503, f"{self._most} event streams are open", kind="streams", remedy="close one")
        wanted = frozenset(filter(None, request.query_params.get("topics", "").split(",")))
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")
        if request.method == "HEAD":
            return _head()
        reader = StreamReader(wanted)
        for message in self._missed(since):
            reader.put(message)
        self._readers.add(reader)  # now, before it begins: those who ask meanwhile find it counted
        return _Stream(self._lines(reader), lambda: self._readers.discard(reader))

    def _missed(self, last: str) -> list[StreamEvent]:
        """What a new stream begins with: what it has missed, then how things stand."""
        after = int(last) if last.isascii() and last.isdecimal() and len(last) < 16 else self._number
        if after > self._number:
            after = 0  # a number of an earlier start: all that happened in this one is missed
        missed = [message for message in self._events if after < message.number]
        return sorted([*missed, *self._states.values()], key=lambda message: message.number)

    async def _lines(self, reader: StreamReader) -> AsyncIterator[bytes]:
        if not self._ticking:
            self._recent.clear()
            self._tick()
        try:
            yield PRELUDE
            while not reader.over:
                lines = reader.take()
                if lines:
                    yield lines
                    continue
                try:
                    await asyncio.wait_for(reader.ready.wait(), HEARTBEAT_SECONDS)
                except (TimeoutError, asyncio.TimeoutError):
                    yield b": still here\n\n"  # so that either side notices when the other has gone
        finally:
            self._readers.discard(reader)
