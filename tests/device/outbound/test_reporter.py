"""What is said over MQTT about this device, and when."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from edged import __version__
from edged.clock import VirtualClock
from edged.device.events import Events
from edged.device.ingest.notices import EventThrottle
from edged.device.outbound.reporter import Reporter, will_payload
from edged.domain.commands.delivery_policy import MessageKind
from edged.domain.events import FleetTrained, TrainingResumed
from edged.domain.training.message import Message
from edged.mqtt.topics import Topics

if TYPE_CHECKING:
    from edged.storage.journal.journal import Sequence


@dataclass(frozen=True)
class Version(Message):
    version: int


@dataclass(frozen=True)
class Rows(Message):
    rows: int


@dataclass(frozen=True)
class Samples(Message):
    samples: int


class Air:
    """Everything published, as `(topic below the root, values, qos, retain)`."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any], int, bool]] = []
        self.clock = VirtualClock(50.0)
        self.delivered: list[tuple[MessageKind, str, dict[str, Any]]] = []
        self.reporter = Reporter(
            topics=Topics("edged/d"),
            outbound=self,
            number=cast("Sequence", itertools.count(1).__next__),
            clock=self.clock,
            events=Events(),
            boot=3,
        )

    def now(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> bool:
        values = json.loads(payload) if payload else {}
        self.said.append((topic.removeprefix("edged/d/"), values, qos, retain))
        return True

    def deliver(self, kind: MessageKind, topic: str, payload: bytes) -> None:
        self.delivered.append((kind, topic, json.loads(payload)))

    def topics(self) -> list[str]:
        return [topic for topic, *_ in self.said]


def test_a_birth_says_online_and_repeats_every_state() -> None:
    air = Air()
    air.reporter.online()
    air.reporter.state("model", Version(1))
    air.reporter.state("buffer", Rows(5))
    air.reporter.state("model", Version(2))
    air.said.clear()
    air.reporter.online()  # as after each reconnect
    assert air.topics() == ["status", "state/model", "state/buffer"]
    status, model, _ = air.said
    assert status[1] == {"state": "online", "version": __version__, "boot": 3, "seq": 2, "ts": 50.0}
    assert model[1] == {"version": 2}
    assert all((qos, retain) == (1, True) for _, _, qos, retain in air.said)


def test_a_state_is_published_only_when_it_changed() -> None:
    air = Air()
    for rows in (1, 1, 2, 2, 1):
        air.reporter.state("buffer", Rows(rows))
    assert [values["rows"] for _, values, *_ in air.said] == [1, 2, 1]


def test_what_was_taken_back_is_not_published_again() -> None:
    air = Air()
    air.reporter.state("model", Version(1))
    air.reporter.state("buffer", Rows(5))
    air.said.clear()
    air.reporter.withdraw_all()
    air.reporter.state("model", Version(2))  # by a thread that had begun to report
    assert air.said == [("state/model", {}, 1, True), ("state/buffer", {}, 1, True)]


def test_a_farewell_says_offline_and_so_does_the_last_will() -> None:
    air = Air()
    air.reporter.farewell()
    topic, values, qos, retain = air.said[0]
    assert (topic, values["state"], qos, retain) == ("status", "offline", 1, True)
    assert json.loads(will_payload(3)) == {"state": "offline", "version": __version__, "boot": 3}


def test_events_and_metrics_are_numbered_and_must_be_delivered() -> None:
    air = Air()
    air.reporter.event(FleetTrained(2, 9, 5, 7, np.float32(0.5)))
    air.clock.advance_to(60.0)
    air.reporter.metrics(Samples(10))
    air.reporter.event(TrainingResumed(7))
    event = {"event": "fleet_trained", "ts": 50.0, "seq": 1, "boot": 3, "round": 2, "samples": 9, "steps": 5,
             "bytes": 7, "norm": 0.5}  # fmt: skip
    resumed = {"event": "training_resumed", "ts": 60.0, "seq": 3, "boot": 3, "run": 7}
    assert air.delivered == [
        (MessageKind.EVENT, "edged/d/events", event),
        (MessageKind.METRICS, "edged/d/metrics", {"ts": 60.0, "seq": 2, "boot": 3, "samples": 10}),
        (MessageKind.EVENT, "edged/d/events", resumed),
    ]
    assert air.said == []


def test_a_flood_of_one_kind_is_held_back_and_counted() -> None:
    clock = VirtualClock()
    throttle = EventThrottle(clock)
    assert throttle.admit("not_json") == 0
    assert [throttle.admit("not_json") for _ in range(5)] == [None] * 5
    assert throttle.admit("too_big") == 0, "another kind has its own measure"
    clock.advance_to(0.9)
    assert throttle.admit("not_json") is None
    clock.advance_to(1.0)
    assert throttle.admit("not_json") == 6
    clock.advance_to(5.0)
    assert throttle.admit("not_json") == 0
