"""A plain client that asks a device, naming topics of its own for the answers (MQTT 5)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

if TYPE_CHECKING:
    from typing_extensions import Self


class Requester:
    """What has come on its filters: topic, payload and correlation data, in that order."""

    def __init__(self, port: int, *filters: str) -> None:
        self.came: list[tuple[str, str, bytes | None]] = []
        self._changed = threading.Condition()
        self._subscribed = threading.Event()
        self._client = client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        client.on_message = self._on_message
        client.on_connect = lambda *_: self._subscribe(filters)
        client.on_subscribe = lambda *_: self._subscribed.set()
        client.max_queued_messages_set(0)
        client.connect("127.0.0.1", port)

    def _subscribe(self, filters: tuple[str, ...]) -> None:
        if filters:
            self._client.subscribe([(pattern, SubscribeOptions(qos=1)) for pattern in filters])
        else:
            self._subscribed.set()

    def __enter__(self) -> Self:
        self._client.loop_start()
        assert self._subscribed.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_message(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        correlation = getattr(message.properties, "CorrelationData", None)
        with self._changed:
            self.came.append((message.topic, message.payload.decode(errors="replace"), correlation))
            self._changed.notify_all()

    def send(
        self, topic: str, payload: bytes, *, answer_to: str | None = None, correlation: str | None = None
    ) -> None:
        """Publish at QoS 1 and wait for the broker."""
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if answer_to is not None:
            properties.ResponseTopic = answer_to
        if correlation is not None:
            properties.CorrelationData = correlation.encode()
        self._client.publish(topic, payload, qos=1, properties=properties).wait_for_publish(10)

    def shout(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 0."""
        self._client.publish(topic, payload, qos=0)

    def wait(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        """Until `condition()` holds; it is looked at after every message."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), self.came[-20:]

    def transactions(self, state: str) -> set[str]:
        """Transactions whose answers tell this state."""
        answers = [json.loads(payload) for _, payload, _ in self.came]
        return {answer.get("transaction") for answer in answers if answer["state"] == state}
