"""Endpoints of the timeline: a key's samples over time, and how many a stretch has.

Both read the sample log on a thread of low priority, one request after the other, on a connection of its own.
That thread asks the current model about a few of the samples, in small parts and for a quarter of a second at
most; the serving thread has no share in it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from edged.device.live_pipeline import LivePipeline
from edged.device.startup.bootstrap import open_samples
from edged.device.web.http.bodies import JSON, HttpError, json_bytes
from edged.device.web.page.history import PageState
from edged.domain.events import AnomalyAlarm
from edged.domain.json_fields import JsonObject
from edged.domain.judging.outputs import answers, probabilities
from edged.errors import ModelError, RejectedSampleError
from edged.mqtt.field_access import parse_time
from edged.storage.samples.log import SampleLog
from edged.storage.samples.timeline import PictureRows, TimelineReader

MOST_KEYS = 500
ASKED, ASKED_BYTES = 200, 1 << 20  # samples that the model is asked about, spread evenly, and their size
ASKED_AT_ONCE, ASKED_SECONDS = 25, 0.25


@dataclass(frozen=True)
class Stretch:
    """The samples of a key from `first` to `last` (Unix seconds), None for the ends of what is stored.

    Without a `key` that of the newest sample is meant.
    """

    key: str | None
    first: float | None
    last: float | None

    def within(self, first: float, last: float) -> tuple[float, float]:
        """Return its ends, where samples are stored from `first` to `last`."""
        start = first if self.first is None else self.first
        return start, max(start, last if self.last is None else self.last)


class TimelinePainter:
    """Reads and computes what a picture shows; call `prepare` first, all else belongs to one thread."""

    def __init__(self, pipeline: LivePipeline, page: PageState) -> None:
        self._pipeline, self._page = pipeline, page
        self._schema = schema = pipeline.schema
        self.names = schema.names or tuple(str(place) for place in range(schema.channels))
        self._log: SampleLog | None = None

    def prepare(self) -> None:
        """Make the index over key and time where there is none; from any thread."""
        self._pipeline.samples.index_times()

    def close(self) -> None:
        """Close the connection to the sample log."""
        if self._log is not None:
            self._log.close()

    def count(self, stretch: Stretch) -> JsonObject:
        """Return the answer of `/api/timeline/count`.

        Raises HttpError 404 for a key without a sample.
        """
        reader, _ = self._open()
        found = _extent(reader, stretch)
        if found is None:
            return {"key": None, "samples": 0}
        key, ends = found
        return {"key": key, "samples": reader.count(key, *stretch.within(*ends))}

    def paint(self, stretch: Stretch, columns: list[int], width: int) -> JsonObject:
        """Return the answer of `/api/timeline`; `columns` are places of features.

        Raises HttpError 404 for a key without a sample.
        """
        reader, log = self._open()
        schema, found = self._schema, _extent(reader, stretch)
        picture: dict[str, Any] = {
            "keys": reader.keys(MOST_KEYS),
            "classes": list(schema.known_classes),
            "free": 0 if schema.open is None else schema.open.free,
            "model": self._pipeline.predictor.champion.version,
        }
        if found is None:
            return picture | {"key": None, "samples": 0, "topics": self._pipeline.config.stream.all_topics}
        key, ends = found
        start, end = stretch.within(*ends)
        rows = reader.read(key, start, end, columns)
        said, missing = self._predictions(reader, rows)
        at, places = _pixels(rows.ts, start, end, width)
        return picture | {
            "key": key, "first": ends[0], "last": ends[1], "from": start, "to": end, "width": width,
            "samples": rows.count, "every": rows.every,
            "at": at, "features": self._features(rows, columns, places), "labels": self._labels(rows, places),
            "predictions": said, "missing": missing,
            "held": self._held(log, key), "marks": self._marks(start, end),
        }  # fmt: skip

    def _open(self) -> tuple[TimelineReader, SampleLog]:
        log = self._log
        if log is None:
            log = self._log = open_samples(self._pipeline.config, readonly=True)
        return TimelineReader(log, self._schema), log

    # ---- values and labels -------------------------------------------------------------------

    def _features(
        self, rows: PictureRows, columns: list[int], places: NDArray[np.int64]
    ) -> list[dict[str, Any]]:
        features = []
        for i, column in enumerate(columns):
            low, high = rows.low[:, i].astype(np.float64), rows.high[:, i].astype(np.float64)
            if len(places):
                low, high = np.fmin.reduceat(low, places), np.fmax.reduceat(high, places)
            unit = self._schema.units[column] if column < len(self._schema.units) else ""
            limits = {"low": _short(low), "high": _short(high)}
            features.append({"name": self.names[column], "unit": unit, **limits})
        return features

    def _labels(self, rows: PictureRows, places: NDArray[np.int64]) -> list[list[Any]]:
        """`[from, to, label]` of neighbours with the same label; of a pixel its first label counts."""
        runs: list[list[Any]] = []
        before: Any = None
        for start, end in pairwise([*places.tolist(), len(rows.ts)]):
            label = next((name for y in rows.y[start:end] if (name := self._name(y)) is not None), None)
            first, last = float(rows.ts[start]), float(rows.ts[end - 1])
            if label is not None and label == before:
                runs[-1][1] = last
            elif label is not None:
                runs.append([first, last, label])
            before = label
        return runs

    def _name(self, y: Any) -> Any:
        """A label as people know it: of several targets the first, None for a class that was removed."""
        if y is None:
            return None
        value = float(np.frombuffer(y, "<f4")[0]) if isinstance(y, bytes) else float(y)
        if self._schema.task != "classify":
            return value
        if self._schema.open is not None:
            value = float(self._schema.open.mapped(np.array([[value]], np.float32))[0, 0])
        return self._schema.classes[int(value)] if 0 <= value < len(self._schema.classes) else None

    def _held(self, log: SampleLog, key: str) -> dict[str, Any] | None:
        held = log.held_labels().get(key)
        if held is None:
            return None
        label = held.label[0] if isinstance(held.label, tuple) else held.label
        return {"label": self._name(label), "since": held.since}

    def _marks(self, start: float, end: float) -> list[list[Any]]:
        """`[time, kind, text]` of drifts, new models, rollbacks and alarms."""
        with self._page.lock:
            marks: list[list[Any]] = [list(mark) for mark in self._page.history.marks]
            events = [report.event for report in self._page.events]
        marks += [
            [event.change.since, "alarm", f"alarm of {event.change.key}"]
            for event in events
            if isinstance(event, AnomalyAlarm) and event.change.until is None
        ]
        return sorted(mark for mark in marks if start <= mark[0] <= end)

    # ---- predictions -------------------------------------------------------------------------

    def _predictions(self, reader: TimelineReader, rows: PictureRows) -> tuple[list[list[Any]], str | None]:
        """`[time, answer, confidence]` of some samples by the current model, and what it lacks to answer."""
        predictor, schema = self._pipeline.predictor, self._schema
        if schema.task not in ("classify", "regress"):
            return [], None
        if predictor.missing is not None:
            return [], predictor.missing
        model = predictor.champion.model
        most = min(len(rows.y), ASKED, max(1, ASKED_BYTES // (4 * schema.width)))
        chosen = [i * len(rows.y) // most for i in range(most)]
        times = {int(rows.offsets[i]): float(rows.ts[i]) for i in chosen}
        predictions: list[list[Any]] = []
        ends, parts = time.monotonic() + ASKED_SECONDS, -(-most // ASKED_AT_ONCE)
        for part in range(parts):  # each is spread over the whole stretch
            found, x = reader.inputs(list(times)[part::parts])
            with suppress(ModelError):  # serving says why
                predictions += self._answers(model.predict(x), [times[offset] for offset in found])
            if time.monotonic() > ends:
                break
        return sorted(predictions, key=lambda one: float(one[0])), None

    def _answers(self, raw: NDArray[np.float32], times: list[float]) -> list[list[Any]]:
        classes = self._schema.classes if self._schema.task == "classify" else None
        sure = None if classes is None else probabilities(raw).max(axis=1)
        said = answers(self._schema, raw)[:, 0]
        return [
            [times[i], said[i].item() if classes is None else classes[int(said[i])],
             None if sure is None else round(float(sure[i]), 3)]
            for i in np.flatnonzero(np.isfinite(raw).all(axis=1)).tolist()
        ]  # fmt: skip


def _extent(reader: TimelineReader, stretch: Stretch) -> tuple[str, tuple[float, float]] | None:
    """The key, and the ends of its samples; None for an empty log where no key is named."""
    key = reader.newest_key() if stretch.key is None else stretch.key
    if key is None:
        return None
    ends = reader.ends(key)
    if ends is None:
        problem = f"no sample of {key[:60]!r} is stored"
        raise HttpError(404, problem, kind="key", remedy="omit it: keys lists those that are")
    return key, ends


def _pixels(
    ts: NDArray[np.float64], start: float, end: float, width: int
) -> tuple[list[int], NDArray[np.int64]]:
    """Columns of pixels that have samples, and the first row of each."""
    column = ((ts - start) / max(end - start, 1e-6) * width).astype(np.int64).clip(0, width - 1)
    places = np.flatnonzero(np.diff(column, prepend=-1))
    return column[places].tolist(), places


def _short(values: NDArray[np.float64]) -> list[float | None]:
    """Values with as many digits as a picture shows; None for what is no number."""
    largest = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    digits = 5 - int(np.floor(np.log10(largest))) if largest else 0
    return [value if np.isfinite(value) else None for value in np.round(values, digits).tolist()]


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
        return Response(json_bytes(found), 200, NO_STORE, JSON)

    async def count(self, request: Request) -> Response:
        """Return how many samples of a key there are from `from` to `to`, both included.

        Errors are those of `picture`.
        """
        stretch = _stretch(request)
        found = await self._on_thread(lambda: self._painter.count(stretch))
        return Response(json_bytes(found), 200, NO_STORE, JSON)

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
