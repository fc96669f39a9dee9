"""What ingest reports: quarantined messages and odd sensors, a flood of them once a second."""

from __future__ import annotations

from collections.abc import Sequence

from edged.clock import Clock
from edged.device.events import Events
from edged.domain.events import (
    SampleImplausible,
    SampleQuarantined,
    SensorBack,
    SensorFlooding,
    SensorMissing,
    SensorMoves,
    SensorStuck,
)
from edged.domain.stream.admission import StuckSensor
from edged.domain.stream.joining import SensorAbsence
from edged.domain.stream.sample import Rejected
from edged.domain.stream.schema import Schema

EVENT_SECONDS = 1.0  # between two events of a kind
MOST_STUCK = 20  # keys of one batch that are reported


class EventThrottle:
    """Lets through one event of a kind per second and counts the rest, so that no flood of events arises."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def admit(self, kind: str) -> int | None:
        """None to hold back; else how many were held back since the last one."""
        now = self._clock.monotonic()
        if now - self._last.get(kind, float("-inf")) < EVENT_SECONDS:
            self._held[kind] = self._held.get(kind, 0) + 1
            return None
        self._last[kind] = now
        return self._held.pop(kind, 0)


class IngestNotices:
    """Turns what ingest notices into events; the field `more` counts those that were held back."""

    def __init__(self, schema: Schema, events: Events, clock: Clock) -> None:
        self._schema, self._events = schema, events
        self._throttle = EventThrottle(clock)

    def rejected(self, rejected: Rejected) -> None:
        """Report a message that was put into quarantine."""
        more = self._throttle.admit(rejected.reason)
        if more is not None:
            event = SampleQuarantined(rejected.reason, rejected.topic, rejected.detail, more)
            self._events.event(event)

    def flooding(self, key: str) -> None:
        """Report a key that sends more than it may."""
        more = self._throttle.admit("sensor_flooding")
        if more is not None:
            self._events.event(SensorFlooding(more, key))

    def stuck(self, changes: list[StuckSensor]) -> None:
        """Report sensors that have stopped, or have begun to move again."""
        for change in changes[:MOST_STUCK]:
            names = tuple(self._schema.names[i] if self._schema.names else i for i in change.features)
            kind = SensorStuck if change.stuck else SensorMoves
            self._events.event(kind(max(0, len(changes) - MOST_STUCK), change.key, names))

    def implausible(self, key: str, feature: int, value: float) -> None:
        """Report a value that cannot be; `feature` is its position in a reading."""
        more = self._throttle.admit("sample_implausible")
        if more is not None:
            name = self._schema.names[feature] if self._schema.names else feature
            self._events.event(SampleImplausible(key, name, value, more))

    def away(self, absence: SensorAbsence, names: Sequence[str]) -> None:
        """Report sensors whose values stay away, or are back; `names` are those of features of messages."""
        kind = SensorMissing if absence.away else SensorBack
        more = self._throttle.admit(kind.NAME)
        if more is not None:
            self._events.event(kind(more, absence.key, tuple(names[at] for at in absence.features)))

    def problem_changed(self) -> None:
        """Report that commits fail, or succeed again."""
        self._events.problem_changed()
