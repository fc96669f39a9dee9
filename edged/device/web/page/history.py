"""State of the page between two requests: quality over time, sensors, events, label requests; all bounded.

It is updated without viewers too, so each update is cheap; what is shown is computed for a request.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edged.domain.drift.signals import Level
from edged.domain.events import (
    DriftDetected,
    LabelRequested,
    ModelPromoted,
    ModelRolledBack,
    SensorEvent,
    SensorMoves,
    SensorStuck,
)
from edged.domain.stream.arrivals import KeyArrivals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.device.reports import Report
    from edged.domain.events import Event
    from edged.domain.json_fields import JsonObject
    from edged.domain.judging.predictions import Predictions

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
