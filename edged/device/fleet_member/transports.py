"""The connection of a member to its fleet over MQTT, plain or signed and sealed."""

from __future__ import annotations

from collections.abc import Callable

from edged.domain.commands.signatures import TrustedKeys
from edged.domain.federated.messages import FleetTopics
from edged.domain.federated.signatures import sealed_to, signer
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.signing import Sealer

log = get_logger("edged.fleet")


class FleetTransport:
    """Carries a fleet's messages over the device's MQTT session.

    With `keys` it passes on rounds and receipts that one of them has signed, and drops all others. Models
    need no signature: a round names them by their hash, which is checked. Where a signed round has a key for
    it, what is published is sealed, so that only the coordinator can read it.
    """

    def __init__(self, session: Session, topics: FleetTopics, keys: TrustedKeys | None) -> None:
        self._session, self._keys = session, keys
        self._round, self._signed = topics.round, (topics.round, topics.ack("+"))
        self._recipient: str | None = None
        self._sealer: Sealer | None = None

    @property
    def connected(self) -> bool:
        """Whether the session is connected to the broker."""
        return self._session.connected

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish a message at QoS 1, sealed if required; return whether the session accepted it."""
        if payload and self._sealer is not None:
            payload = self._sealer.seal(payload, topic.encode())
        return self._session.publish(topic, payload, qos=1, retain=retain)

    def follow(self, pattern: str, sink: Callable[[ReceivedMessage], None]) -> None:
        """Subscribe to a topic filter, retained messages included; `sink` gets them on the network thread."""

        def receive(delivery: ReceivedMessage) -> None:
            if self._accepts(pattern, delivery):
                sink(delivery)
            self._session.ack([delivery])

        self._session.subscribe([pattern], 1, receive, kept_again=True)

    def leave(self, pattern: str) -> None:
        """Unsubscribe from a topic filter."""
        self._session.unsubscribe([pattern])

    def _accepts(self, pattern: str, delivery: ReceivedMessage) -> bool:
        """Return whether a message is signed if it must be; a signed round says to whom to seal."""
        if self._keys is None or pattern not in self._signed:
            return True
        if signer(delivery.topic, delivery.payload, self._keys) is None:
            log.warning(
                "fleet_message_refused", reason="signature", topic=delivery.topic,
                problem="it is not signed by a key of fleet.keys",
            )  # fmt: skip
            return False
        if pattern == self._round:
            self._seal_to(sealed_to(delivery.payload))
        return True

    def _seal_to(self, recipient: str | None) -> None:
        """Seal to this key from now on; with None, seal nothing."""
        if recipient != self._recipient:
            self._sealer = None if recipient is None else Sealer(recipient)
            self._recipient = recipient
