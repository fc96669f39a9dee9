"""The connection to a fleet over the device's own MQTT session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edged.mqtt.client.message import ReceivedMessage
    from edged.mqtt.client.session import Session


class MqttTransport:
    """Fleet transport over an MQTT session; acknowledges each message once its sink has it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def connected(self) -> bool:
        """Whether the session is connected to the broker."""
        return self._session.connected

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish a message at QoS 1; return whether the session accepted it."""
        return self._session.publish(topic, payload, qos=1, retain=retain)

    def follow(self, pattern: str, sink: Callable[[ReceivedMessage], None]) -> None:
        """Subscribe to a topic filter, retained messages included."""

        def receive(delivery: ReceivedMessage) -> None:
            sink(delivery)
            self._session.ack([delivery])

        self._session.subscribe([pattern], 1, receive, kept_again=True)

    def leave(self, pattern: str) -> None:
        """Unsubscribe from a topic filter."""
        self._session.unsubscribe([pattern])
