"""Reports of the device as server-sent events (WHATWG HTML, section 9.2) for open pages.

Names of events are topics below the device's own: `state/model`, `events`, `metrics`, `predictions`,
`response/train`. A stream starts with the newest of each state, and of the metrics. A browser that reconnects
(`Last-Event-ID`) gets the events that it missed, as far as they are still stored; `?since=0` requests all.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from edged.device.web.bridge import soon
from edged.device.web.http.bodies import MAX_STREAMS, HttpError
from edged.domain.json_fields import json_ready

KEPT = 200  # events, for browsers that reconnect
BEHIND = 500  # messages that a reader can be behind; the server disconnects slower readers
RECENT = 50  # predictions per message, the newest
PREDICTIONS_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0
PRELUDE = b"retry: 2000\n\n"
EVENT_STREAM = "text/event-stream"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class StreamEvent(NamedTuple):
    """One event of the stream; `wire` is how it is sent."""

    number: int
    name: str
    wire: bytes


class StreamReader:
    """One open stream, with the events that it still has to send."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted
        self._waiting: deque[bytes] = deque()
        self.ready = asyncio.Event()
        self.over = False

    def wants(self, name: str) -> bool:
        """Whether the client requested events of this name; `state` includes all below `state/`."""
        return not self._wanted or name in self._wanted or name.partition("/")[0] in self._wanted

    def put(self, message: StreamEvent) -> None:
        """Queue an event; a reader that is too slow is disconnected, and reconnects by itself."""
        if self.over or not self.wants(message.name):
            return
        self._waiting.append(message.wire)
        if len(self._waiting) > BEHIND:
            self.close()
        self.ready.set()

    def pop_events(self) -> bytes:
        """Return and remove all queued events."""
        events = b"".join(self._waiting)
        self._waiting.clear()
        self.ready.clear()
        return events

    def close(self) -> None:
        """End the stream and drop the queued events."""
        self.over = True
        self._waiting.clear()
        self.ready.set()


class _Stream(StreamingResponse):
    """An open stream; its reader is removed in every case, also if the client leaves before the start."""

    def __init__(self, feed: EventStream, reader: StreamReader) -> None:
        super().__init__(feed.lines(reader), headers=HEADERS, media_type=EVENT_STREAM)
        self._feed = feed
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._feed.remove(self._reader)


class EventStream:
    """Sends the daemon's reports to all open streams, at most `MAX_STREAMS`; cheap without streams.

    Make it on the event loop; `publish` and `predicted` can be called from any thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._readers: set[StreamReader] = set()
        self._states: dict[str, StreamEvent] = {}
        self._events: deque[StreamEvent] = deque(maxlen=KEPT)
        self._recent: deque[bytes] = deque(maxlen=RECENT)
        self._number = 0
        self._ticking = False
        self._ended = False

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._readers)

    # ---- reports of the daemon (any thread) ---------------------------------------------------

    def publish(self, name: str, values: Mapping[str, Any]) -> None:
        """Send a report to all streams, under the name of its topic."""
        soon(self._loop, self._publish, name, values)

    def predicted(self, payloads: list[bytes]) -> None:
        """Send published predictions to all streams: the newest of them, twice per second."""
        self._recent.extend(payloads[-RECENT:])

    # ---- the event loop -----------------------------------------------------------------------

    def stop(self) -> None:
        """End all streams and reject new ones."""
        self._ended = True
        for reader in self._readers:
            reader.close()

    def _publish(self, name: str, values: Any) -> None:
        self._number += 1
        text = json.dumps(json_ready(values), separators=(",", ":"), default=float)
        wire = f"id: {self._number}\nevent: {name}\ndata: {text}\n\n".encode()
        message = StreamEvent(self._number, name, wire)
        if name == "events" or name.startswith("response/"):
            self._events.append(message)
        elif name != "predictions":
            self._states[name] = message
        for reader in self._readers:
            reader.put(message)

    def _tick(self) -> None:
        """Send recent predictions while there are readers."""
        self._ticking = bool(self._readers)
        if not self._ticking:
            return
        recent = [self._recent.popleft() for _ in range(len(self._recent))]
        if recent and any(reader.wants("predictions") for reader in self._readers):
            self._publish("predictions", [json.loads(payload) for payload in recent])
        asyncio.get_running_loop().call_later(PREDICTIONS_SECONDS, self._tick)

    async def stream(self, request: Request) -> Response:
        """Open an event stream; `?topics=events,state` selects topics, by default all."""
        if self._ended:
            raise HttpError(503, "the device is stopping", kind="stopping")
        if len(self._readers) >= MAX_STREAMS:
            raise HttpError(503, f"{MAX_STREAMS} event streams are open", kind="streams", remedy="close one")
        wanted = frozenset(filter(None, request.query_params.get("topics", "").split(",")))
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")
        if request.method == "HEAD":
            head = Response(None, 200, HEADERS, EVENT_STREAM)
            del head.headers["content-length"]
            return head
        reader = StreamReader(wanted)
        for message in self._missed(since):
            reader.put(message)
        self._readers.add(reader)  # now, before it starts, so that the limit counts it
        return _Stream(self, reader)

    def _missed(self, last: str) -> list[StreamEvent]:
        """Return the first events of a stream: those that it missed, and the newest of each state."""
        after = int(last) if last.isascii() and last.isdecimal() and len(last) < 16 else self._number
        if after > self._number:
            after = 0  # a number of an earlier start: all events of this one were missed
        missed = [message for message in self._events if after < message.number]
        return sorted([*missed, *self._states.values()])  # by number

    def remove(self, reader: StreamReader) -> None:
        """Remove the reader of a stream that has ended. Safe to call twice."""
        self._readers.discard(reader)

    async def lines(self, reader: StreamReader) -> AsyncIterator[bytes]:
        """Yield what a reader has to send, until it ends."""
        if not self._ticking:
            self._recent.clear()
            self._tick()
        try:
            yield PRELUDE
            while not reader.over:
                lines = reader.pop_events()
                if lines:
                    yield lines
                    continue
                try:
                    await asyncio.wait_for(reader.ready.wait(), HEARTBEAT_SECONDS)
                except (TimeoutError, asyncio.TimeoutError):
                    yield b": still here\n\n"  # either side then notices when the other has gone
        finally:
            self.remove(reader)
