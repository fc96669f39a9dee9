"""Sending messages within the limits that the broker has set; used by the network thread."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTProtocolVersion

from edged.logs import get_logger
from edged.mqtt.client.connection import PacketClient, refusal_remedy
from edged.mqtt.client.message import OutgoingMessage
from edged.mqtt.client.packets import PacketSocket

MAX_INFLIGHT = 20
FORBIDDEN_SECONDS = 60.0
MOST_FORBIDDEN = 256
_HEADER = 64

log = get_logger("edged.mqtt")


class BrokerLimits(NamedTuple):
    """What the broker takes: unacknowledged messages at a time, bytes of a packet."""

    inflight: int = MAX_INFLIGHT
    packet: int = 268_435_455

    @classmethod
    def of(cls, properties: Any) -> BrokerLimits:
        """The limits in the properties of a CONNACK packet; MQTT 3.1.1 has none."""
        inflight = min(MAX_INFLIGHT, getattr(properties, "ReceiveMaximum", MAX_INFLIGHT))
        return cls(inflight, getattr(properties, "MaximumPacketSize", cls().packet))


class Publisher:
    """Sends QoS 0 messages through the wire and QoS 1 messages through paho, which repeats them.

    paho is given no more than may be in flight, so that nothing waits there unbounded. Some brokers hang up
    after a message on a topic that they forbid: for `FORBIDDEN_SECONDS` no other is sent there.
    """

    def __init__(self, backlog: int) -> None:
        self.outgoing = OutgoingQueues(backlog)
        self.limits = BrokerLimits()
        self._flying: dict[int, OutgoingMessage] = {}
        self._done: list[OutgoingMessage] = []
        self._forbidden: dict[str, float] = {}  # topics, and until when

    @property
    def pending(self) -> int:
        """QoS 1 messages that the broker has not acknowledged."""
        return len(self.outgoing.sure) + len(self._flying)

    @property
    def idle(self) -> bool:
        """Whether everything has been sent, and acknowledged where it will be."""
        return not (len(self.outgoing) or self._flying)

    def send(self, client: Client, wire: PacketSocket) -> None:
        """Send what the limits and the network allow now."""
        self._send_sure(client)
        # What paho holds (a SUBSCRIBE, a birth) goes first: order matters on the other side.
        if client.want_write():
            client.loop_write()
        while wire.room and (message := self.outgoing.next_fast()) is not None:
            if self._fits(message):
                wire.publish(message)

    def _send_sure(self, client: Client) -> None:
        v5 = client.protocol == MQTTProtocolVersion.MQTTv5
        while len(self._flying) < self.limits.inflight and (message := self.outgoing.next_sure()) is not None:
            if self._is_forbidden(message.topic) or not self._fits(message):
                self._done.append(message)
                continue
            properties = message.properties.to_paho() if v5 and message.properties else None
            info = client.publish(message.topic, message.payload, message.qos, message.retain, properties)
            self._flying[info.mid] = message

    def answered(self, mid: int, reason: Any) -> None:
        """Record the broker's acknowledgement or rejection of a message."""
        message = self._flying.pop(mid, None)
        if message is None:
            return
        if reason.is_failure:
            remedy = refusal_remedy(str(reason))
            log.error("mqtt_publish_refused", topic=message.topic, reason=str(reason), remedy=remedy)
            self.outgoing.dropped += 1
            if str(reason) == "Not authorized":
                self._forbid(message.topic)
        self._done.append(message)

    def report_done(self) -> None:
        """Call `on_done` of the messages that were acknowledged or rejected."""
        while self._done:
            message = self._done.pop(0)
            if message.on_done is not None:
                message.on_done()

    def start_over(self) -> None:
        """The client was replaced: what is in flight is sent again."""
        self.outgoing.put_back(self._flying.values())
        self._flying.clear()

    def _forbid(self, topic: str) -> None:
        if len(self._forbidden) >= MOST_FORBIDDEN:
            del self._forbidden[next(iter(self._forbidden))]
        self._forbidden[topic] = time.monotonic() + FORBIDDEN_SECONDS

    def forget_forbidden(self, client: PacketClient) -> None:
        """Give up what was in flight to forbidden topics: repeated, it would cost the next connection."""
        for mid in [mid for mid, message in self._flying.items() if self._is_forbidden(message.topic)]:
            client.forget(mid)
            self._done.append(self._flying.pop(mid))

    def _is_forbidden(self, topic: str) -> bool:
        """Whether the broker has refused this topic lately; such a message is dropped as refused."""
        until = self._forbidden.get(topic)
        if until is None:
            return False
        if time.monotonic() >= until:
            del self._forbidden[topic]
            return False
        self.outgoing.dropped += 1
        return True

    def _fits(self, message: OutgoingMessage) -> bool:
        size = len(message.topic.encode()) + len(message.payload) + _HEADER
        if size <= self.limits.packet:
            return True
        self.outgoing.dropped += 1
        remedy = refusal_remedy("Packet too large")
        log.error("mqtt_too_large", topic=message.topic, bytes=size, limit=self.limits.packet, remedy=remedy)
        return False


class OutgoingQueues:
    """Two queues, `fast` for QoS 0 and `sure` for QoS 1, of at most `limit` messages each.

    A full QoS 0 queue loses its oldest message, which `dropped` counts; a full QoS 1 queue refuses
    the new one, so that its sender keeps it.

    >>> from edged.mqtt.client.message import OutgoingMessage
    >>> queue = OutgoingQueues(1)
    >>> queue.put(OutgoingMessage("a", b"1")), queue.put(OutgoingMessage("a", b"2")), queue.dropped
    (True, True, 1)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.fast: deque[OutgoingMessage] = deque()
        self.sure: deque[OutgoingMessage] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self.fast) + len(self.sure)

    def room(self, qos: int) -> int:
        """How many more messages of this QoS can be put before any is dropped or refused."""
        return self._limit - (len(self.sure) if qos else len(self.fast))

    def put(self, message: OutgoingMessage) -> bool:
        """Queue a message; False if it was rejected."""
        with self._lock:
            if message.qos:
                if len(self.sure) >= self._limit:
                    return False
                self.sure.append(message)
                return True
            if len(self.fast) >= self._limit:
                self.fast.popleft()
                self.dropped += 1
            self.fast.append(message)
            return True

    def next_fast(self) -> OutgoingMessage | None:
        """Take the oldest QoS 0 message."""
        with self._lock:
            return self.fast.popleft() if self.fast else None

    def next_sure(self) -> OutgoingMessage | None:
        """Take the oldest QoS 1 message."""
        with self._lock:
            return self.sure.popleft() if self.sure else None

    def forget_fast(self) -> None:
        """Drop the QoS 0 messages that wait."""
        with self._lock:
            self.fast.clear()

    def put_back(self, messages: Iterable[OutgoingMessage]) -> None:
        """Return QoS 1 messages to the front, in their order."""
        with self._lock:
            self.sure.extendleft(reversed(list(messages)))
