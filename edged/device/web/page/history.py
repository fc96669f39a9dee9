"""State of the page between two requests: quality over time, sensors, events, label requests; all bounded.

It is updated without viewers too, so each update is cheap; what is shown is computed for a request. The
quality of the initial model on current samples is the baseline for all learning.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.device.live_pipeline import LivePipeline
from edged.device.reports import Report
from edged.domain.drift.signals import Level
from edged.domain.events import (
    DriftDetected,
    Event,
    LabelRequested,
    ModelPromoted,
    ModelRolledBack,
    SensorEvent,
    SensorMoves,
    SensorStuck,
)
from edged.domain.json_fields import JsonObject
from edged.domain.judging.outputs import answers, errors
from edged.domain.judging.predictions import LiveQuality, Predictions
from edged.domain.protocols import Model
from edged.domain.stream.arrivals import KeyArrivals
from edged.errors import EdgedError
from edged.logs import get_logger

POINTS = 600  # of quality over time
MARKS = 100  # drifts and swaps on the same axis
EVENTS = 50
REQUESTS = 20  # labels that people are asked for, the newest
REPORTS = 5  # evaluations
MOST_KEYS = 500

Point = tuple[float, float | None, float | None]
"""Time (Unix seconds), live quality, and quality of the initial model."""

Mark = tuple[float, str, str]
"""Time (Unix seconds), kind and text of a drift or a swap."""


class History:
    """Quality over time, coarser for older times, with drifts and promotions.

    >>> history = History()
    >>> for ts in range(2000):
    ...     history.add((float(ts), 0.5, None))
    >>> len(history.points) <= POINTS, history.points[0][0], history.points[-1][0]
    (True, 0.0, 1999.0)
    """

    def __init__(self, points: Iterable[Point] = (), marks: Iterable[Mark] = ()) -> None:
        self.points: list[Point] = [(ts, live, frozen) for ts, live, frozen in points][-POINTS:]
        self.marks: deque[Mark] = deque(((ts, kind, text) for ts, kind, text in marks), MARKS)

    def add(self, point: Point) -> None:
        """Add a point; if there are too many, drop every other point of the older half."""
        self.points.append(point)
        if len(self.points) > POINTS:
            half = POINTS // 2
            self.points = self.points[:half:2] + self.points[half:]


@dataclass(slots=True)
class Sensor(KeyArrivals):
    """One key: when its samples came, and its newest prediction."""

    ts: float = 0.0
    version: int = 0
    label: int | None = None
    confidence: float | None = None
    output: list[float] = field(default_factory=list)
    choices: list[int] | None = None  # classes that the answer is one of, where it is not the label


class PageState:
    """History, events, sensors and label requests of the page; usable from any thread.

    `kept` is the stored history of an earlier start; None without one.
    """

    def __init__(self, kept: Mapping[str, Any] | None) -> None:
        self.lock = threading.Lock()
        kept = kept or {}
        self.history = History(kept.get("points", ()), kept.get("marks", ()))
        self.events: deque[Report] = deque(maxlen=EVENTS)
        self.requests: dict[str, LabelRequested] = {}
        self.evaluations: deque[Mapping[str, Any]] = deque(maxlen=REPORTS)
        self.sensors: dict[str, Sensor] = {}
        self.stuck: dict[str, set[str]] = {}
        self.forgotten = 0

    def measured(self, ts: float, live: float | None, frozen: float | None) -> None:
        """Add quality at a time."""
        with self.lock:
            self.history.add((ts, live, frozen))

    def dump(self) -> JsonObject:
        """Return the history for storage."""
        with self.lock:
            return {"points": self.history.points, "marks": list(self.history.marks)}

    def reported(self, report: Report) -> None:
        """Record an event of the daemon; other reports are none of the page's."""
        event = report.event
        if event is None:
            return
        with self.lock:
            if isinstance(event, LabelRequested):  # has a section of its own, and would bury the others
                self.requests[event.id] = event
                while len(self.requests) > REQUESTS:
                    del self.requests[next(iter(self.requests))]
                return
            self.events.append(report)
            if isinstance(event, SensorStuck | SensorMoves):
                self._stillness(event)
            elif mark := _mark(event):
                self.history.marks.append((report.ts, *mark))

    def _stillness(self, event: SensorEvent) -> None:
        features = set(map(str, event.features))
        now = self.stuck.pop(event.key, set())
        now = now | features if isinstance(event, SensorStuck) else now - features
        if now and len(self.stuck) < MOST_KEYS:
            self.stuck[event.key] = now

    def command_succeeded(self, name: str, fields: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Record what a command over HTTP with these fields changes; `data` is that of its answer."""
        with self.lock:
            if name == "label":
                for entry in fields.get("labels", [fields]):
                    self.requests.pop(str(entry.get("id", "")), None)
            elif name == "evaluate":
                self.evaluations.append(data)

    def answered(self, keys: Sequence[str], ts: NDArray[Any], made: Predictions, monotonic: float) -> None:
        """Record the predictions of samples `(n,)`; on the thread that answers."""
        last = dict(zip(keys, range(len(keys)), strict=True))
        counts = Counter(keys)
        with self.lock:
            for key, i in last.items():
                sensor = self.sensors.pop(key, None) or Sensor(monotonic)
                self.sensors[key] = sensor  # the newest are at the end
                sensor.record_arrivals(counts[key], monotonic)
                sensor.ts, sensor.version = float(ts[i]), made.version
                sensor.output = made.output[i, :4].tolist()
                if made.confidence is not None:
                    answer = made.answers[i, 0]
                    sensor.label = None if answer != answer else int(answer)  # noqa: PLR0124  not a number: no answer
                    sensor.confidence = float(made.confidence[i])
                    sensor.choices = choices(made, i)
            while len(self.sensors) > MOST_KEYS:
                del self.sensors[next(iter(self.sensors))]
                self.forgotten += 1


def choices(made: Predictions, row: int) -> list[int] | None:
    """The classes that an answer is one of: of its set, none where it is too uncertain; None: its label."""
    if made.promise is not None:
        return made.promise.classes(row)
    return [] if made.least and made.undecided[row] else None


def _mark(event: Event) -> tuple[str, str] | None:
    """Return kind and text of the mark of an event; None for events without a mark."""
    match event:
        case DriftDetected(signal=signal) if signal.level is Level.DRIFT:
            return "drift", f"Drift in {signal.source}"
        case ModelPromoted(version=version):
            return "swap", f"Version {version} promoted"
        case ModelRolledBack(to=version):
            return "back", f"Rollback to version {version}"
    return None


MOST = 1000  # labelled samples per call: as many as live quality is the mean of

log = get_logger("edged.web")


class Baseline:
    """Evaluates the initial model on samples that were labelled since the last call.

    The model is loaded when a trained model serves, or a head learns beside it: until then both are the same.
    Samples of the holdout are left out, which makes no difference to the mean.
    """

    def __init__(self, pipeline: LivePipeline) -> None:
        self._pipeline = pipeline
        self._quality = LiveQuality()
        self._model: Model | None = None
        self._seq = 0
        self._gone = False

    def quality(self) -> float | None:
        """Return its accuracy or error on the newest labelled samples; None if the model is not stored."""
        predictor, registry = self._pipeline.predictor, self._pipeline.registry
        live = predictor.live_quality()
        alone = self._pipeline.mix.head is None  # a head beside the initial model learns from the first label
        if alone and self._model is None and registry.get(predictor.champion.version).source == "bundle":
            return live.mean
        try:
            self._follow()
        except EdgedError as problem:
            log.warning("first_model_unusable", problem=problem.line())
            self._gone = True
        mean = None if self._gone else self._quality.mean
        return None if mean is None else 1.0 - mean if live.of_classes else mean

    def _follow(self) -> None:
        if self._model is None and not self._gone:
            self._model = self._pipeline.models.first_model()
            self._gone = self._model is None
        if self._model is None or self._gone:
            return
        window = self._pipeline.reader.training_window(self._seq, MOST)
        if len(window) == 0:
            return
        self._seq = int(window.seq[-1])
        predictor = self._pipeline.predictor
        raw = self._model.predict(window.x)
        wrong = errors(predictor.schema, answers(predictor.schema, raw), window.y, predictor.champion.scale)
        usual = np.isfinite(raw).all(axis=1)
        if predictor.anomalies is not None:
            usual &= wrong <= predictor.anomalies.limit
        self._quality.add(wrong[usual])
