"""Traffic of a member over MQTT: models that it fetches, updates that it sends until a receipt names them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edged.domain.commands.signatures import TrustedKeys
from edged.domain.federated.messages import BaseModelInfo, FleetTopics, Receipts, UpdateHeader, joined
from edged.domain.federated.participation import RESEND_SECONDS, pause_before
from edged.domain.federated.round_orders import KeptUpdate
from edged.domain.federated.signatures import sealed_to, signer
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.signing import Sealer
from edged.storage.models.fleet import SentUpdates

SILENT_SECONDS = 60.0
"""Time without a part of a model that is still missing, until the member requests the model again."""


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


@dataclass
class PendingUpdate:
    """An update without receipt: its header fields, how often it was sent, and when it is due again."""

    number: int
    about: KeptUpdate
    at: float
    sendings: int = 0


class UpdateSender:
    """Sends the stored updates of one device until a receipt names them, on the thread of its member."""

    def __init__(
        self, device: str, topics: FleetTopics, transport: FleetTransport, updates: SentUpdates
    ) -> None:
        self._device, self._topics = device, topics
        self._transport, self._updates = transport, updates
        self._waiting: dict[int, PendingUpdate] = {}

    def resume(self, settled: Iterable[int], now: float) -> list[PendingUpdate]:
        """Resume sending what an earlier process has left: the newest of each round, oldest round first."""
        newest: dict[str, PendingUpdate] = {}
        for sent in self._updates.all():  # newest first
            if sent.number not in settled:
                at = now + RESEND_SECONDS * random.random()
                newest.setdefault(sent.about.id, PendingUpdate(sent.number, sent.about, at))
        self._waiting = {waiting.number: waiting for waiting in newest.values()}
        return [self._waiting[number] for number in sorted(self._waiting)]

    def add(self, number: int, about: KeptUpdate, at: float) -> None:
        """Add an update, to be sent at `at`, in seconds of the monotonic clock."""
        self._waiting[number] = PendingUpdate(number, about, at)

    def send(self, now: float) -> int:
        """Send all updates that are due; return how many bytes they have."""
        size = 0
        due = [waiting for waiting in self._waiting.values() if waiting.at <= now]
        for waiting in due if self._transport.connected else []:
            sent = self._updates.get(waiting.number)
            if sent is None:
                del self._waiting[waiting.number]  # newer ones have taken its place
                continue
            for topic, payload in self._header(waiting.about).messages(self._topics, sent.blob):
                self._transport.publish(topic, payload)
                size += len(payload)
            waiting.sendings += 1
            waiting.at = now + pause_before(waiting.sendings, random.random())
        return size

    def acknowledge(self, payload: bytes) -> list[tuple[PendingUpdate, str | None]]:
        """Stop sending the updates that these receipts name; return each, with the reason if it was rejected.

        Raises RejectedUpdateError when the receipts are malformed.
        """
        receipts, acknowledged = Receipts.read(payload), []
        for waiting in [w for w in self._waiting.values() if w.about.id == receipts.id]:
            refused = receipts.refused.get(self._device)
            if refused is None and self._device not in receipts.accepted:
                continue
            del self._waiting[waiting.number]
            acknowledged.append((waiting, refused))
        return acknowledged

    def _header(self, about: KeptUpdate) -> UpdateHeader:
        """Return the line before the update."""
        return UpdateHeader(
            device=self._device,
            round=about.round,
            id=about.id,
            base=about.base,
            samples=about.samples,
            bytes=0,
            sha256="",
        )


class ModelFetcher:
    """Fetches the models of a fleet, one at a time."""

    def __init__(self, topics: FleetTopics, transport: FleetTransport) -> None:
        self._topics, self._transport = topics, transport
        self._base: BaseModelInfo | None = None
        self._pattern = ""
        self._parts: dict[int, bytes] = {}
        self._since = 0.0

    def request(self, base: BaseModelInfo, now: float, sink: Callable[[ReceivedMessage], None]) -> None:
        """Request this model and no other; request it again if its parts do not come.

        `sink` gets each part, on the network thread, and hands it to `add` on the member's.
        """
        if self._base == base and now - self._since <= SILENT_SECONDS:
            return
        other = self._base is not None
        self.close()
        if other:
            return  # the broker must have heard of the end before it keeps sending what it has
        self._base, self._pattern, self._since = base, self._topics.model(base.hash, "+"), now
        self._transport.follow(self._pattern, sink)

    def add(self, topic: str, payload: bytes, now: float) -> bytes | None:
        """Add a part that came; return the complete model with the last one.

        Raises RejectedUpdateError when the parts together are not as large as was announced.
        """
        *_, digest, number = topic.split("/")
        base = self._base
        if base is None or base.hash != digest or not number.isdecimal() or int(number) >= base.parts:
            return None
        self._parts[int(number)], self._since = payload, now
        if len(self._parts) < base.parts:
            return None
        parts = [self._parts[n] for n in range(base.parts)]
        self.close()
        return joined(parts, base)

    def close(self) -> None:
        """Unsubscribe and drop the received parts."""
        if self._base is not None:
            self._transport.leave(self._pattern)
        self._base, self._parts = None, {}
