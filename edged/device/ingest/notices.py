"""What ingest reports: quarantined messages and odd sensors, a flood of them once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edged.device.outbound.reporter import EventThrottle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edged.clock import Clock
    from edged.device.events import Events
    from edged.domain.stream.joining import SensorAbsence
    from edged.domain.stream.sample import Rejected
    from edged.domain.stream.schema import Schema
    from edged.domain.stream.stuck_sensors import StuckSensor

MOST_STUCK = 20  # keys of one batch that are reported


class IngestNotices:
    """Turns what ingest notices into events; the field `more` counts those that were held back."""

    def __init__(self, schema: Schema, events: Events, clock: Clock) -> None:
        self._schema, self._events = schema, events
        self._throttle = EventThrottle(clock)

    def rejected(self, rejected: Rejected) -> None:
        """Report a message that was put into quarantine."""
        more = self._throttle.admit(rejected.reason)
        if more is not None:
            fields = {"reason": rejected.reason, "topic": rejected.topic, "detail": rejected.detail}
            self._events.event("sample_quarantined", {**fields, "more": more})

    def flooding(self, key: str) -> None:
        """Report a key that sends more than it may."""
        more = self._throttle.admit("sensor_flooding")
        if more is not None:
            self._events.event("sensor_flooding", {"more": more, "key": key})

    def stuck(self, changes: list[StuckSensor]) -> None:
        """Report sensors that have stopped, or have begun to move again."""
        for change in changes[:MOST_STUCK]:
            names = [self._schema.names[i] if self._schema.names else i for i in change.features]
            self._events.event(
                "sensor_stuck" if change.stuck else "sensor_moves",
                {"more": max(0, len(changes) - MOST_STUCK), "key": change.key, "features": names},
            )

    def implausible(self, key: str, feature: int, value: float) -> None:
        """Report a value that cannot be; `feature` is its position in a reading."""
        more = self._throttle.admit("sample_implausible")
        if more is not None:
            name = self._schema.names[feature] if self._schema.names else feature
            fields = {"key": key, "feature": name, "value": value, "more": more}
            self._events.event("sample_implausible", fields)

    def away(self, absence: SensorAbsence, names: Sequence[str]) -> None:
        """Report sensors whose values stay away, or are back; `names` are those of features of messages."""
        more = self._throttle.admit("sensor_missing" if absence.away else "sensor_back")
        if more is not None:
            features = [names[at] for at in absence.features]
            event = "sensor_missing" if absence.away else "sensor_back"
            self._events.event(event, {"more": more, "key": absence.key, "features": features})

    def problem_changed(self) -> None:
        """Report that commits fail, or succeed again."""
        self._events.problem_changed()
