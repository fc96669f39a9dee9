"""Endpoints of the timeline: a key's samples over time, and how many a stretch has.

Both read the sample log on a thread of low priority, one request after the other, on a connection of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from edged.device.web.api.timeline_picture import Stretch, TimelinePainter
from edged.device.web.http.bodies import JSON, HttpError, json_bytes, respond
from edged.errors import RejectedSampleError
from edged.mqtt.field_access import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from edged.device.live_pipeline import LivePipeline
    from edged.device.web.page.history import PageState
    from edged.domain.json_fields import JsonObject

USUAL_FEATURES, MOST_FEATURES = 3, 8
USUAL_WIDTH, MOST_WIDTH = 600, 2000  # pixels
LONGEST_KEY = 256
WAITING = 8  # requests; more are refused
NICE = 10
NO_STORE = {"cache-control": "no-store"}
TIMES = "Unix seconds, or ISO 8601, in UTC without a zone"


class TimelineEndpoints:
    """Endpoints `/api/timeline` and `/api/timeline/count`.

    The first request makes an index over key and time, as the first label of an interval does: about a
    second for a million samples.
    """

    def __init__(self, pipeline: LivePipeline, page: PageState) -> None:
        self._painter = TimelinePainter(pipeline, page)
        self._thread: ThreadPoolExecutor | None = None
        self._waiting = 0

    async def picture(self, request: Request) -> Response:
        """Return a stretch in `width` columns: least and largest values, labels, predictions, events.

        400 for a wrong parameter, 404 for a key without a sample, 503 for too many requests.
        """
        stretch, named = _stretch(request), request.query_params.getlist("feature")
        columns, width = self._columns(named), _width(request.query_params.get("width"))
        found = await self._on_thread(lambda: self._painter.paint(stretch, columns, width))
        if not named:
            found = {**found, "names": list(self._painter.names)}
        return respond(request.scope["edged.headers"], json_bytes(found), JSON, NO_STORE)

    async def count(self, request: Request) -> Response:
        """Return how many samples of a key there are from `from` to `to`, both included.

        Errors are those of `picture`.
        """
        stretch = _stretch(request)
        found = await self._on_thread(lambda: self._painter.count(stretch))
        return respond(request.scope["edged.headers"], json_bytes(found), JSON, NO_STORE)

    async def close(self) -> None:
        """Close the connection; later requests are refused."""
        self._waiting = WAITING
        if self._thread is not None:
            await asyncio.wrap_future(self._thread.submit(self._painter.close))
            self._thread.shutdown(wait=False)

    async def _on_thread(self, work: Callable[[], JsonObject]) -> JsonObject:
        if self._waiting >= WAITING:
            problem, later = f"{WAITING} requests wait", {"retry-after": "1"}
            raise HttpError(503, problem, kind="overloaded", remedy="try again", headers=later)
        self._waiting += 1
        try:
            if self._thread is None:
                await asyncio.to_thread(self._painter.prepare)  # not at low priority: commits wait for it
                self._thread = self._thread or ThreadPoolExecutor(1, "web-timeline", _yield_to_others)
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    def _columns(self, named: list[str]) -> list[int]:
        names = self._painter.names
        if not named:
            return list(range(min(USUAL_FEATURES, len(names))))
        if len(named) > MOST_FEATURES:
            raise _wrong("feature", f"{len(named)} of them; a picture has at most {MOST_FEATURES}")
        for name in named:
            if name not in names:
                raise _wrong(
                    "feature", f"{name[:40]!r} is no feature of the stream", "omit it: names lists all"
                )
        return [names.index(name) for name in named]


def _yield_to_others() -> None:
    """Let threads that serve go first: on Linux a priority belongs to a thread."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def _stretch(request: Request) -> Stretch:
    """Read `key`, `from` and `to`; HttpError 400 when one of them is wrong."""
    given = request.query_params
    key = given.get("key") or None
    if key is not None and len(key) > LONGEST_KEY:
        raise _wrong("key", f"longer than {LONGEST_KEY} characters")
    first, last = (None if given.get(name) is None else _time(name, given[name]) for name in ("from", "to"))
    if first is not None and last is not None and first > last:
        raise _wrong("from", f"{given['from'][:40]} is after to, {given['to'][:40]}")
    return Stretch(key, first, last)


def _time(name: str, text: str) -> float:
    try:
        return parse_time(float(text))
    except ValueError:
        pass  # no number: a date
    except RejectedSampleError:
        raise _wrong(name, f"{text[:40]!r} is no time", TIMES) from None
    try:
        return parse_time(text)
    except RejectedSampleError:
        raise _wrong(name, f"{text[:40]!r} is no time", TIMES) from None


def _width(text: str | None) -> int:
    if text is None:
        return USUAL_WIDTH
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= MOST_WIDTH):
        raise _wrong("width", f"{text[:40]!r} is no number of pixels from 1 to {MOST_WIDTH}")
    return int(text)


def _wrong(where: str, what: str, remedy: str = "") -> HttpError:
    return HttpError(400, f"{where}: {what}", kind="request", remedy=remedy)
