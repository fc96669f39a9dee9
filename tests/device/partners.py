"""Partners of a stage that is tested by itself: they do nothing, unless a test overrides a method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edged.device.events import Events, Listener
from edged.device.serving.label_requester import LabelRequester
from edged.domain.labels.label_requests import LabelRequests
from edged.host.systemd import Notifier, Watchdog

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.domain.drift.signals import DriftSignal
    from edged.domain.events import Event
    from edged.domain.protocols import ServedModel
    from edged.domain.stream.sample import Batch, LabelUpdate
    from edged.domain.stream.schema import Schema
    from edged.domain.training.trainer_messages import CheckpointWritten, RunProgress


class Supervisor:
    """A `ModelSupervisor` that lets everything be as it is."""

    def wake(self) -> None: ...

    def drifted(self, signal: DriftSignal) -> None: ...

    def fallen(self) -> None: ...

    def probation_ended(self, version: int, passed: bool) -> None: ...

    def champion_failed(self, version: int, reason: str) -> None: ...

    def rescue(self, failing: ServedModel, reason: str) -> ServedModel | None:
        return None


class Sink:
    """A `SampleSink` that takes everything and keeps nothing."""

    def submit(self, batch: Batch, received: Any) -> None: ...

    def label(self, updates: list[LabelUpdate]) -> None: ...


class Connection:
    """A `Broker` that sends `in_flight` messages at a time."""

    in_flight = 1000

    def ack(self, deliveries: Sequence[Any]) -> None: ...

    def drop(self) -> None: ...


class Observer:
    """Hands the progress of a run to a function."""

    def __init__(self, action: Callable[[RunProgress], object]) -> None:
        self._action = action

    def progress(self, message: RunProgress) -> None:
        self._action(message)

    def checkpointed(self, message: CheckpointWritten) -> None: ...


class Recorder(Listener):
    """Keeps events as `(name, fields)`, predictions as they are published, and what was answered."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.published: list[dict[str, Any]] = []
        self.answers: list[tuple[Any, ...]] = []

    def event(self, event: Event) -> None:
        self.events.append((event.name, event.to_json()))

    def named(self, name: str) -> list[Mapping[str, Any]]:
        """The fields of all events of this name."""
        return [fields for event, fields in self.events if event == name]

    def predicted(self, payloads: list[bytes]) -> None:
        self.published.extend(map(json.loads, payloads))

    def answered(self, *answered: Any) -> None:
        self.answers.append(answered)


def watchdog() -> Watchdog:
    """One that nobody listens to."""
    return Watchdog(Notifier(), ("ingest", "serve"))


def no_requests(schema: Schema, clock: Clock) -> LabelRequester:
    """Asks for no label."""
    return LabelRequester(LabelRequests(0.0), schema, clock, Events())
