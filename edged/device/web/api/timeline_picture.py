"""What the timeline shows of a stretch: values, labels, what the model says, and what happened.

The thread that paints asks the current model about a few of the samples, in small parts and for a quarter of
a second at most; the serving thread has no share in it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.device.startup.bootstrap import open_samples
from edged.device.web.http.bodies import HttpError
from edged.domain.events import AnomalyAlarm
from edged.domain.judging.outputs import answers, probabilities
from edged.errors import ModelError
from edged.storage.samples.timeline import TimelineReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.device.live_pipeline import LivePipeline
    from edged.device.web.page.history import PageState
    from edged.domain.json_fields import JsonObject
    from edged.storage.samples.log import SampleLog
    from edged.storage.samples.timeline import PictureRows

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
        for part in _scattered(parts):  # what there is no time for is missing everywhere a little
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


def _scattered(count: int) -> list[int]:
    """The numbers below `count`, the first of them far apart.

    >>> _scattered(5)
    [0, 4, 2, 1, 3]
    """
    bits = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda i: int(f"{i:0{bits}b}"[::-1], 2))
