"""A coordinator of a fleet that does what a test tells it to, over a plain paho client."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from edged.domain.federated.messages import (
    BaseModelInfo,
    DeviceState,
    Evaluation,
    FleetTopics,
    Receipts,
    RoundAnnouncement,
    RoundSettings,
    UpdateHeader,
    split,
)
from edged.domain.federated.signatures import signed
from edged.domain.training.weight_coding import decode, fingerprint
from edged.mqtt import weight_encoding
from edged.signing import SEALED, Unsealer, sign

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    Weights = Mapping[str, np.ndarray[Any, np.dtype[np.float32]]]


class Coordinator:
    """Publishes models and rounds, and keeps what devices send."""

    def __init__(self, port: int, fleet: str = "plant") -> None:
        self.key: Path | None = None  # signs rounds and receipts
        self.topics = FleetTopics(fleet)
        self.updates: list[tuple[UpdateHeader, bytes]] = []
        self.states: list[DeviceState] = []
        self.sealed: list[str] = []  # kinds of messages that were
        self.evaluations: list[Evaluation] = []
        self._changed = threading.Condition()
        self._subscribed = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.connect("127.0.0.1", port)
        self._client.subscribe([(pattern, SubscribeOptions(qos=1)) for pattern in self.topics.of_devices])
        self._client.loop_start()
        assert self._subscribed.wait(10)

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        (kind, *_), payload = self.topics.sender(message.topic), bytes(message.payload)
        with self._changed:
            if payload.startswith(SEALED):
                self.sealed.append(kind)
                if self.key is None or self.key.stem == "stranger":
                    return
                payload = Unsealer(self.key).open(payload, message.topic.encode())
            if kind == "up":
                self.updates.append(UpdateHeader.read(payload))
            elif kind == "state":
                self.states.append(DeviceState.read(payload))
            else:
                self.evaluations.append(Evaluation.read(payload))
            self._changed.notify_all()

    def wait(self, condition: Callable[[], Any], seconds: float = 30.0) -> None:
        """Until `condition()` holds; it is looked at after every message."""
        with self._changed:
            told = (len(self.updates), self.states[-1:], self.evaluations)
            assert self._changed.wait_for(condition, seconds), told

    def state(self, ready: bool) -> DeviceState:
        """The newest state once it says so."""
        self.wait(lambda: self.states and self.states[-1].ready is ready)
        return self.states[-1]

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """At QoS 1, until the broker has it."""
        self._client.publish(topic, payload, qos=1, retain=retain).wait_for_publish(10)

    def model(self, values: Weights) -> BaseModelInfo:
        """Publish the parts of a model."""
        blob = weight_encoding.pack(values)
        parts, digest = split(blob), fingerprint(values)
        for number, part in enumerate(parts):
            self.publish(self.topics.model(digest, number), part, retain=True)
        return BaseModelInfo(digest, len(blob), len(parts))

    def announce(
        self, number: int, base: BaseModelInfo, bundle: str, config: RoundSettings, **more: Any
    ) -> RoundAnnouncement:
        """Open a round, or what `more` says of it."""
        now = time.time()
        fields: dict[str, Any] = {
            "id": secrets.token_hex(16), "state": "open", "opened": now, "deadline": now + 60.0,
            "window": 0.2, "devices": None, **more,
        }  # fmt: skip
        announced = RoundAnnouncement(
            fleet=self.topics.fleet, round=number, bundle=bundle, base=base, config=config, **fields
        )
        self.tell(self.topics.round, announced.payload(), retain=True)
        return announced

    def acknowledge(self, announced: RoundAnnouncement, **fields: Any) -> None:
        """Receipts for a round."""
        self.tell(self.topics.ack(announced.round), Receipts(announced.id, **fields).payload())

    def tell(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish a round or receipts, signed where there is a key."""
        if (key := self.key) is not None:
            payload = signed(topic, payload, lambda message: sign(message, key))
        self.publish(topic, payload, retain=retain)

    def of(self, announced: RoundAnnouncement) -> list[tuple[UpdateHeader, bytes]]:
        """The updates of a round that have come."""
        return [came for came in self.updates if came[0].id == announced.id]

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def led_to(base: Weights, blob: bytes) -> Weights:
    """Where an update leads from its base."""
    change = decode(weight_encoding.unpack_coded(blob))
    return {name: value + change[name] if name in change else value for name, value in base.items()}
