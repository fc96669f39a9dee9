"""The connection to a fleet whose rounds and receipts must be signed by the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from edged.domain.federated.signatures import signer
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.fleet_member.protocols import FleetTransport
    from edged.domain.commands.signatures import TrustedKeys
    from edged.domain.federated.messages import FleetTopics
    from edged.mqtt.client.message import ReceivedMessage

log = get_logger("edged.fleet")


class SignedTransport:
    """Passes on rounds and receipts that one of `keys` has signed, and drops all others.

    Models need no signature: a round names them by their hash, which is checked.
    """

    def __init__(self, transport: FleetTransport, topics: FleetTopics, keys: TrustedKeys) -> None:
        self._transport, self._keys = transport, keys
        self._signed = (topics.round, topics.ack("+"))

    @property
    def connected(self) -> bool:
        """Whether the connection is established."""
        return self._transport.connected

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Publish a message; return whether it was accepted."""
        return self._transport.publish(topic, payload, retain=retain)

    def follow(self, pattern: str, sink: Callable[[ReceivedMessage], None]) -> None:
        """Subscribe to a topic filter, retained messages included."""
        if pattern not in self._signed:
            self._transport.follow(pattern, sink)
            return

        def check(delivery: ReceivedMessage) -> None:
            if signer(delivery.topic, delivery.payload, self._keys) is not None:
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
