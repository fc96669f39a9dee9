"""Reporting: status, state, metrics and events over MQTT."""

from __future__ import annotations

import json
import threading

from edged import __version__
from edged.clock import Clock
from edged.device.events import Events, Listener
from edged.device.reports import Report
from edged.domain.commands.delivery_policy import MessageKind
from edged.domain.events import Event
from edged.domain.json_fields import JsonObject
from edged.domain.protocols import Outbound
from edged.domain.training.message import Message
from edged.logs import get_logger
from edged.mqtt.topics import Topics
from edged.storage.journal.journal import Sequence

NOT_LOGGED = {"key", "id", "values", "answer", "sample_ts", "topic", "detail", "payload"}
"""Fields of events that are of samples: the journal is out of reach of `wipe`."""
WARNED = {"sample_quarantined", "training_paused", "candidates_refused"}
"""Events that the log has as warnings."""

log = get_logger("edged.report")


def will_payload(boot: int) -> bytes:
    """The last will: what the broker says of us when we are gone without a word."""
    return _json({"state": "offline", "version": __version__, "boot": boot})


class Reporter(Listener):
    """Publishes events, states and metrics; states that do not get through are sent at the next birth.

    All methods can be called from any thread. `number` numbers messages, also across restarts; `boot` is the
    number of the daemon's start. `events` hears each report, whether the broker receives it or not.
    """

    def __init__(
        self,
        *,
        topics: Topics,
        outbound: Outbound,
        number: Sequence,
        clock: Clock,
        boot: int,
        events: Events,
    ) -> None:
        self._topics = topics
        self._events = events
        self._outbound = outbound
        self._number = number
        self._clock = clock
        self._boot = boot
        self._states: dict[str, Message] = {}
        self._withdrawn = False
        self._lock = threading.Lock()  # also while states are sent: the broker keeps the last that comes

    def online(self) -> None:
        """After every (re)connect: publish the birth message and all retained states."""
        self._status("online")
        with self._lock:
            for name, state in self._states.items():
                self._send_state(name, state)

    def farewell(self) -> None:
        """Publish the status `offline`; call it before an orderly end."""
        self._status("offline")

    def withdraw_all(self) -> None:
        """Have the broker forget the retained states, and publish no more of them: the stream is no more."""
        with self._lock:
            self._withdrawn = True
            for name in self._states:
                self._outbound.now(self._topics.state(name), b"", qos=1, retain=True)

    def _status(self, state: str) -> None:
        stamp = {"ts": self._clock.now(), "seq": self._number(), "boot": self._boot}
        values = {"state": state, "version": __version__, **stamp}
        self._outbound.now(self._topics.status, _json(values), qos=1, retain=True)

    def state(self, name: str, state: Message) -> None:
        """Publish a retained state when it has changed, and again after every reconnect."""
        with self._lock:
            if self._withdrawn or self._states.get(name) == state:
                return
            self._states[name] = state
            self._send_state(name, state)
        self._events.reported(Report(f"state/{name}", state, self._clock.now()))

    def _send_state(self, name: str, state: Message) -> None:
        self._outbound.now(self._topics.state(name), _json(state.to_json()), qos=1, retain=True)

    def event(self, event: Event) -> None:
        """Publish an event, and log it."""
        fields = event.to_json()
        write = log.warning if event.name in WARNED else log.info
        write(event.name, **{field: value for field, value in fields.items() if field not in NOT_LOGGED})
        self._deliver(MessageKind.EVENT, self._topics.events, "events", event)

    def metrics(self, metrics: Message) -> None:
        """Publish counters and gauges."""
        self._deliver(MessageKind.METRICS, self._topics.metrics, "metrics", metrics)

    def _deliver(self, kind: MessageKind, topic: str, below: str, message: Message) -> None:
        report = Report(below, message, self._clock.now(), self._number(), self._boot)
        self._outbound.deliver(kind, topic, _json(report.to_json()))
        self._events.reported(report)


class StreamReporter(Reporter):
    """Reports of one stream of several: `status` and the last will are the device's."""

    def _status(self, state: str) -> None:
        """Nothing: one stream does not speak for the device."""


def _json(values: JsonObject) -> bytes:
    return json.dumps(values, separators=(",", ":"), default=float).encode()
