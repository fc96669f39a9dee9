"""The connection to a fleet whose rounds and receipts must be signed, and that reads what is sealed to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from edged.domain.federated.signatures import opened_bytes, sealed_to, signer
from edged.logs import get_logger
from edged.signing import Sealer

if TYPE_CHECKING:
    from edged.device.fleet_member.protocols import FleetTransport
    from edged.domain.commands.signatures import TrustedKeys
    from edged.domain.federated.messages import FleetTopics
    from edged.mqtt.client.message import ReceivedMessage

log = get_logger("edged.fleet")


class SignedTransport:
    """Passes on rounds and receipts that one of `keys` has signed, and drops all others.

    Models need no signature: a round names them by their hash, which is checked. Where a signed round has a
    key for it, what is published is sealed, so that only the coordinator can read it.
    """

    def __init__(self, transport: FleetTransport, topics: FleetTopics, keys: TrustedKeys) -> None:
        self._transport, self._keys = transport, keys
        self._topics = topics
        self._signed = (*topics.rounds, topics.ack("+"))
        self._peers = topics.peers("+", "", "").rstrip("/")
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
        if pattern.startswith(self._peers):
            self._transport.follow(pattern, partial(self._open, sink))
            return
        if pattern not in self._signed:
            self._transport.follow(pattern, sink)
            return

        def check(delivery: ReceivedMessage) -> None:
            if signer(delivery.topic, delivery.payload, self._keys) is not None:
                if pattern in self._topics.rounds:
                    self._seal_to(sealed_to(delivery.payload))
                sink(delivery)
                return
            _refused(delivery)

        self._transport.follow(pattern, check)

    def _seal_to(self, recipient: str | None) -> None:
        """Seal to this key from now on; with None, seal nothing."""
        if recipient != self._recipient:
            self._sealer = None if recipient is None else Sealer(recipient)
            self._recipient = recipient

    def _open(self, sink: Callable[[ReceivedMessage], None], delivery: ReceivedMessage) -> None:
        """Pass on a message about masks without its signature."""
        payload = opened_bytes(delivery.topic, delivery.payload, self._keys)
        if payload is None:
            _refused(delivery)
        else:
            sink(replace(delivery, payload=payload))

    def leave(self, pattern: str) -> None:
        """Unsubscribe from a topic filter."""
        self._transport.leave(pattern)


def _refused(delivery: ReceivedMessage) -> None:
    log.warning(
        "fleet_message_refused",
        reason="signature",
        topic=delivery.topic,
        problem="it is not signed by a key of fleet.keys",
    )
