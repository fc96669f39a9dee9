"""A device in Home Assistant: its discovery messages, the states of its keys, and taking both back."""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged import __version__
from edged.config import Config
from edged.config.mqtt import DiscoveryConfig
from edged.device.events import Extension
from edged.device.integrations import ANNOUNCED
from edged.device.integrations.key_states import KeyStates
from edged.device.live_pipeline import LivePipeline
from edged.device.outbound.publisher import OutboundRouter
from edged.device.settings import page_address
from edged.domain.events import AnomalyAlarm, Event
from edged.domain.home_assistant import (
    BIRTH,
    AnnouncedDevice,
    Announcement,
    announcement,
    hub_announcement,
    key_announcement,
    labelling_state,
    prediction_state,
    topic,
)
from edged.domain.json_fields import JsonObject
from edged.domain.judging.predictions import Predictions
from edged.domain.stream.schema import Schema
from edged.domain.training.message import Message
from edged.errors import StorageError
from edged.host.scheduler import Scheduler, Timetable
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session

log = get_logger("edged.discovery")

KEYS = "home_assistant_keys"
LOOK_SECONDS = 1.0
AGAIN_SECONDS = 3.0  # until Home Assistant has what was announced, options of a select for one
LEAST_ROOM = 100  # messages that must find room at the broker's side before a state is published
MOST_GONE = 100  # components of a device that are remembered after they went


@dataclass(frozen=True)
class AnnouncedTopics:
    """What the broker retains for Home Assistant.

    `devices` has the discovery topics with the platforms of their components, those that went too; `states`
    the topics of the states of keys.
    """

    devices: dict[str, dict[str, str]] = field(default_factory=dict)
    states: frozenset[str] = frozenset()

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> AnnouncedTopics:
        """Read what was stored, if anything was."""
        return cls() if stored is None else cls(stored["devices"], frozenset(stored["states"]))

    def to_json(self) -> JsonObject:
        """Return what is stored."""
        return {"devices": self.devices, "states": sorted(self.states)}

    def with_more(self, devices: dict[str, Announcement], states: Collection[str]) -> AnnouncedTopics:
        """Return these and what is announced now: messages by topic, and states."""
        known = dict(self.devices)
        for place, message in devices.items():
            now = {name: part["platform"] for name, part in message["components"].items()}
            before = {name: kind for name, kind in known.get(place, {}).items() if name not in now}
            known[place] = dict([*before.items()][-MOST_GONE:]) | now
        return AnnouncedTopics(known, self.states | frozenset(states))

    def without(self, place: str) -> AnnouncedTopics:
        """Return the topics without this one."""
        devices = {known: parts for known, parts in self.devices.items() if known != place}
        return AnnouncedTopics(devices, self.states - {place})


class HomeAssistantDiscovery(Extension):
    """The retained messages by which Home Assistant knows this device, its `commands` and its keys.

    The registry remembers what is retained, so that all of it can be taken back. What is announced and
    published happens on the thread of `scheduler`, which can wait for the disk.
    """

    def __init__(
        self,
        pipeline: LivePipeline,
        *,
        session: Session,
        outbound: OutboundRouter,
        commands: Collection[str],
        scheduler: Scheduler | Timetable,
    ) -> None:
        self._pipeline = pipeline
        self._session = session
        self._outbound = outbound
        self._scheduler = scheduler
        self._registry = pipeline.registry
        config = self._config = pipeline.config
        self._section = config.discovery or DiscoveryConfig()
        self._enabled = config.discovery is not None
        self._commands = config.commands.unsigned().intersection(commands)
        self._stored = self._announced = AnnouncedTopics.from_json(self._registry.get_value(ANNOUNCED))
        keys = self._registry.get_value(KEYS, []) if self._enabled and config.serving.publish else []
        self._states = KeyStates(pipeline.schema, pipeline.clock, keys)
        self._stored_keys: list[str] = list(keys)
        self._seen: tuple[Any, ...] | None = None
        self._again = float("inf")
        self._cleared: deque[str] = deque()
        self._wanted: set[str] = set()
        if pipeline.predictor.anomalies is not None:
            for key in pipeline.predictor.anomalies.standing():
                self._states.alarmed(key, alarm=True)

    # ---- what happens ----------------------------------------------------------------------

    def start(self) -> None:
        """Listen for the birth of Home Assistant, and look for states that have changed."""
        if self._enabled:
            self._session.subscribe([self.births], 1, self.receive, shared=True)
            self._scheduler.every(LOOK_SECONDS, self._look)

    @property
    def births(self) -> str:
        """The topic on which Home Assistant says that it has started."""
        return f"{self._section.prefix}/status"

    def withdraw_all(self) -> None:
        """Have the broker forget what was announced, and announce no more: the stream is no more."""
        self._enabled = False
        for place in [*self._announced.devices, *self._announced.states]:
            self._session.publish(place, b"", qos=1, retain=True)

    def online(self) -> None:
        """After each connection: announce, and take back what an earlier configuration had announced."""
        self._states.repeat()
        self._scheduler.soon(self._announce)

    def receive(self, delivery: ReceivedMessage) -> None:
        """Home Assistant has started, or ends."""
        if delivery.payload == BIRTH:
            self._scheduler.soon(self._announce)
        self._session.ack([delivery])

    def answered(self, made: Predictions, keys: Sequence[str], ts: NDArray[np.float64]) -> None:
        """Take in predictions; on the thread that answers."""
        if self._enabled and self._config.serving.publish and self._states.answered(made, keys, ts):
            self._scheduler.soon(self._look)

    def event(self, event: Event) -> None:
        """Let the states of keys follow their alarms."""
        if isinstance(event, AnomalyAlarm) and self._enabled:
            self._states.alarmed(event.change.key, alarm=event.change.until is None)
            self._scheduler.soon(self._look)

    def champion_changed(self, version: int) -> None:  # noqa: ARG002
        """Publish the states again: their answers are another model's."""
        self._states.repeat()

    def erased(self) -> None:
        """Take the keys back: their samples were erased."""
        self._states.forget()
        self._scheduler.soon(self._look)

    # ---- on the scheduler's thread ---------------------------------------------------------

    def _look(self) -> None:
        """Announce keys and classes that have changed, and publish what is due."""
        if not self._enabled or not self._session.connected:
            return
        keys, classes = self._states.keys, self._pipeline.schema.known_classes
        if self._seen is not None and self._seen != (keys, classes):
            self._announce()
        if self._pipeline.clock.monotonic() >= self._again:
            self._again = float("inf")
            self._states.repeat()
        self._publish_states()

    def _publish_states(self) -> None:
        if self._enabled and self._config.serving.publish:
            joiner = self._pipeline.ingestor.joiner
            self._states.publish(self._send_state, silent=self._outbound.silent)
            if joiner.restored:
                self._states.publish_labels(joiner.held, self._send_state)

    def _announce(self) -> None:
        """Publish what is announced now, and take back what no longer is."""
        if not self._session.connected:
            return
        keys, classes = self._states.keys, self._pipeline.schema.known_classes
        devices = self._messages(keys, classes) if self._enabled else {}
        states = {self._state(name(key)) for key in keys for name in (prediction_state, labelling_state)}
        self._announced = self._announced.with_more(devices, states)
        self._store(keys)
        self._wanted = {*devices, *states}
        for place in [*self._announced.devices, *self._announced.states]:
            if place not in self._wanted:
                self._clear(place)
        sent = [
            self._session.publish(place, _json(message), qos=1, retain=True)
            for place, message in devices.items()
        ]
        # What found no room is tried again with the next look.
        self._seen, self._states.classes = ((keys, classes) if all(sent) else ()), classes
        self._again = self._pipeline.clock.monotonic() + AGAIN_SECONDS
        self._publish_states()

    def _messages(self, keys: Sequence[str], classes: tuple[str, ...]) -> dict[str, Announcement]:
        """Build the discovery messages by topic: with several keys each of them is a device of its own."""
        prefix, root = self._section.prefix, self._config.topic_root
        device = _device(self._config, self._pipeline.schema, self._commands, classes)
        main = topic(prefix, root)
        known = self._announced.devices
        places = {key: topic(prefix, root, key) for key in keys}
        apart = len(keys) > 1 or any(place in known for place in places.values())
        messages = {main: announcement(device, () if apart else keys, gone=known.get(main))}
        if apart:
            messages |= {
                place: key_announcement(device, key, gone=known.get(place)) for key, place in places.items()
            }
        return messages

    def _state(self, name: str) -> str:
        return f"{self._config.topic_root}/state/{name}"

    def _send_state(self, name: str, state: Message) -> bool:
        """Publish a state that was announced, and so can be taken back, unless much waits for the broker."""
        place = self._state(name)
        if place not in self._wanted or not self._session.connected or self._session.room(1) < LEAST_ROOM:
            return False
        return self._session.publish(place, _json(state.to_json()), qos=1, retain=True)

    def _clear(self, place: str) -> None:
        def done() -> None:
            self._cleared.append(place)
            self._scheduler.soon(self._forget_cleared)

        self._session.publish(place, b"", qos=1, retain=True, on_done=done)

    def _forget_cleared(self) -> None:
        while self._cleared:
            place = self._cleared.popleft()
            if place not in self._wanted:  # it may have come back meanwhile
                self._announced = self._announced.without(place)
        self._store(self._stored_keys)

    def _store(self, keys: list[str]) -> None:
        """Store what has to be taken back one day; if the disk refuses it, the next announcement does."""
        try:
            if self._announced != self._stored:
                self._registry.set_value(ANNOUNCED, self._announced.to_json())
                self._stored = self._announced
            if keys != self._stored_keys:
                self._registry.set_value(KEYS, keys)
                self._stored_keys = keys
        except StorageError as problem:
            log.warning("discovery_not_remembered", problem=problem.line())


def _device(
    config: Config, schema: Schema, commands: Collection[str], classes: tuple[str, ...]
) -> AnnouncedDevice:
    section = config.discovery or DiscoveryConfig()
    return AnnouncedDevice(
        id=config.device.id,
        name=" ".join(filter(None, (section.name or config.device.id, config.name))),
        root=config.topic_root,
        above=config.device_root if config.name else None,
        task=schema.task,
        version=__version__,
        commands=commands,
        classes=classes,
        targets=1 if schema.task == "reconstruct" else schema.targets,
        url=page_address(config.web, socket.gethostname()),
        predictions=config.serving.publish,
    )


def hub_message(config: Config) -> tuple[str, bytes]:
    """Return topic and payload of the discovery message of a device with several streams."""
    section = config.discovery or DiscoveryConfig()
    device = AnnouncedDevice(
        id=config.device.id,
        name=section.name or config.device.id,
        root=config.device_root,
        task="classify",
        version=__version__,
        commands=(),
        url=page_address(config.web, socket.gethostname()),
    )
    return topic(section.prefix, config.device_root), _json(hub_announcement(device))


def _json(values: JsonObject) -> bytes:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
