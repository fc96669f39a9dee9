"""A coordinator without a broker: what it publishes is kept, and devices speak to it directly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml
from safetensors.numpy import save_file

from edged.domain.federated.messages import (
    DeviceState,
    Evaluation,
    FleetTopics,
    Quality,
    RoundAnnouncement,
)
from edged.fleet.config import load
from edged.fleet.coordinator.coordinator import Coordinator
from edged.mqtt.client.message import ReceivedMessage
from tests.fleet.senders import FLEET, SHAPES, base_weights, change_of, update_of

if TYPE_CHECKING:
    from edged.fleet.config import CoordinatorConfig
    from edged.mqtt.client.session import Session

TOPICS = FleetTopics(FLEET)
BUNDLE = "f00"


class Line:
    """The place of the broker: retained messages, and who receives what devices say."""

    def __init__(self) -> None:
        self.connected = True
        self.retained: dict[str, bytes] = {}
        self.sent: list[tuple[str, bytes]] = []
        self._sink: Callable[[ReceivedMessage], None] | None = None

    def start(self) -> None:
        """Nothing has to be started."""

    def stop(self) -> None:
        """Whoever listened hears no more."""
        self._sink = None

    def subscribe(self, patterns: Sequence[str], qos: int, sink: Callable[[ReceivedMessage], None]) -> None:
        self._sink = sink

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        self.sent.append((topic, payload))
        if retain:
            self.retained[topic] = payload
        return True

    def ack(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Nobody asks for it."""

    def say(self, topic: str, payload: bytes) -> None:
        """A device speaks."""
        if self._sink is not None:
            self._sink(ReceivedMessage(topic, bytes(payload), 1, 1, False, False, 1, 0.0))


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


class Fleet:
    """A coordinator that a test lets take its turns, and the devices that it hears."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(base_weights(), folder / "model.safetensors")
        self.path, self.clock, self.line = folder / "fleet.yaml", Time(), Line()
        self.configure(**sections)
        self.coordinator = self._made()

    def configure(self, **sections: Any) -> None:
        """Write another configuration; the next start reads it."""
        usual = {"fleet": FLEET, "model": "model.safetensors", "bundle": BUNDLE, "dir": "state"}
        self.path.write_text(yaml.safe_dump(usual | {"log": {"level": "error"}} | sections), encoding="utf-8")

    @property
    def config(self) -> CoordinatorConfig:
        return load(self.path)

    def _made(self) -> Coordinator:
        self.line = Line()
        made = Coordinator(self.config, clock=self.clock, session=cast("Session", self.line))
        made.online()
        return made

    def restart(self) -> None:
        """The process ends, as it may at any moment between two turns, and another begins."""
        self.coordinator.close()
        self.coordinator = self._made()

    def turns(self, count: int = 2) -> None:
        """Let it take what has come and do what is due."""
        for _ in range(count):
            self.coordinator._inbox.wake()  # noqa: SLF001  it waits for messages otherwise
            self.coordinator.turn()

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.clock.seconds += seconds
        self.turns()

    @property
    def told(self) -> RoundAnnouncement | None:
        """The round as devices hear of it."""
        payload = self.line.retained.get(TOPICS.round)
        return None if payload is None else RoundAnnouncement.read(payload)

    def state(self, device: str, **fields: Any) -> None:
        """A device says how it is."""
        usual = DeviceState(device, self.clock.now(), BUNDLE, "1", 1000, True, "", True, 0)
        self.line.say(TOPICS.state(device), replace(usual, **fields).payload())

    def update(self, device: str, samples: int = 100) -> None:
        """A device sends its update for the round."""
        for topic, payload in self.update_of(device, samples):
            self.line.say(topic, payload)

    def update_of(self, device: str, samples: int = 100) -> list[tuple[str, bytes]]:
        """What a device sends in the round: topics and payloads; nothing without a round."""
        if (told := self.told) is None:
            return []
        change, _ = change_of(device, told.round, SHAPES)
        update, blob = update_of(told, device, change, samples)
        return list(update.messages(TOPICS, blob))

    def report(self, device: str, loss: float) -> None:
        """A device says what it makes of the model that is tried, beside a loss of 1 before."""
        if (told := self.told) is not None:
            report = Evaluation(
                device, told.round, told.id, told.base.hash, 10, Quality(1.0, 0.5), Quality(loss, 0.5),
                Quality(1.0, 0.5), True, "",
            )  # fmt: skip
            self.line.say(TOPICS.evaluation(told.round, device), report.payload())
