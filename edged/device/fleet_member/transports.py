"""The connection of a member to its fleet over MQTT, plain or signed and sealed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from edged.domain.commands.signatures import TrustedKeys
from edged.domain.federated.signatures import sealed_to, signer
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.signing import Sealer

if TYPE_CHECKING:
    from edged.domain.federated.messages import FleetTopics

log = get_logger("edged.fleet")


class FleetTransport(Protocol):
    """The connection to the fleet; see `MqttTransport` and `SignedTransport`."""

    @property
    def connected(self) -> bool:
        """Whether the connection is established."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish a message; return whether it was accepted."""

    def follow(self, pattern: str, sink: Callable[[ReceivedMessage], None]) -> None:
        """Subscribe to a topic filter, retained messages included; `sink` gets them on the network thread."""

    def leave(self, pattern: str) -> None:
        """Unsubscribe from a topic filter."""


class MqttTransport:
    """Fleet transport over the device's MQTT session; acknowledges each message once its sink has it."""

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


class SignedTransport:
    """Passes on rounds and receipts that one of `keys` has signed, and drops all others.

    Models need no signature: a round names them by their hash, which is checked. Where a signed round has a
    key for it, what is published is sealed, so that only the coordinator can read it.
    """

    def __init__(self, transport: FleetTransport, topics: FleetTopics, keys: TrustedKeys) -> None:
        self._transport, self._keys = transport, keys
        self._topics = topics
        self._signed = (topics.round, topics.ack("+"))
        self._recipient: str | None = None
        self._sealer: Sealer | None = None

    @property
    def connected(self) -> bool:
        """Whether the connection is established."""
        return self._transport.connected

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish a message, sealed where that is asked for; return whether it was accepted."""
        if payload and self._sealer is not None:
            payload = self._sealer.seal(payload, topic.encode())
        return self._transport.publish(topic, payload, retain=retain)

    def follow(self, pattern: str, sink: Callable[[ReceivedMessage], None]) -> None:
        """Subscribe to a topic filter, retained messages included."""
        if pattern not in self._signed:
            self._transport.follow(pattern, sink)
            return

        def check(delivery: ReceivedMessage) -> None:
            if signer(delivery.topic, delivery.payload, self._keys) is not None:
                if pattern == self._topics.round:
                    self._seal_to(sealed_to(delivery.payload))
                sink(delivery)
                return
            log.warning(
                "fleet_message_refused",
                reason="signature",
                topic=delivery.topic,
                problem="it is not signed by a key of fleet.keys",
            )

        self._transport.follow(pattern, check)

    def leave(self, pattern: str) -> None:
        """Unsubscribe from a topic filter."""
        self._transport.leave(pattern)

    def _seal_to(self, recipient: str | None) -> None:
        """Seal to this key from now on; with None, seal nothing."""
        if recipient != self._recipient:
            self._sealer = None if recipient is None else Sealer(recipient)
            self._recipient = recipient
