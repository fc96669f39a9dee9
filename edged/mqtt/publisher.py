"""Sending messages within the limits that the broker has set; used by the network thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from paho.mqtt.enums import MQTTProtocolVersion

from edged.logs import get_logger
from edged.mqtt.connection import refusal_remedy
from edged.mqtt.outgoing import Outgoing

if TYPE_CHECKING:
    from paho.mqtt.client import Client

    from edged.mqtt.delivery import Message
    from edged.mqtt.wire import Wire

MAX_INFLIGHT = 20
_HEADER = 64

log = get_logger("edged.mqtt")


class Limits(NamedTuple):
    """What the broker takes: unacknowledged messages at a time, bytes of a packet."""

    inflight: int = MAX_INFLIGHT
    packet: int = 268_435_455

    @classmethod
    def of(cls, properties: Any) -> Limits:
        """The limits in the properties of a CONNACK packet; MQTT 3.1.1 has none."""
        inflight = min(MAX_INFLIGHT, getattr(properties, "ReceiveMaximum", MAX_INFLIGHT))
        return cls(inflight, getattr(properties, "MaximumPacketSize", cls().packet))


class Publisher:
    """Sends QoS 0 messages through the wire and QoS 1 messages through paho, which repeats them.

    paho is given no more than may be in flight, so that nothing waits there unbounded.
    """

    def __init__(self, backlog: int) -> None:
        self.outgoing = Outgoing(backlog)
        self.limits = Limits()
        self._flying: dict[int, Message] = {}
        self._done: list[Message] = []

    @property
    def pending(self) -> int:
        """QoS 1 messages that the broker has not acknowledged."""
        return self.outgoing.sure + len(self._flying)

    @property
    def idle(self) -> bool:
        """Whether everything has been sent, and acknowledged where it will be."""
        return not (len(self.outgoing) or self._flying)

    def send(self, client: Client, wire: Wire) -> None:
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
            if not self._fits(message):
                self._done.append(message)
                continue
            properties = message.properties.to_paho() if v5 and message.properties else None
            info = client.publish(message.topic, message.payload, message.qos, message.retain, properties)
            self._flying[info.mid] = message

    def answered(self, mid: int, reason: Any) -> None:
        """The broker has acknowledged or refused a message."""
        message = self._flying.pop(mid, None)
        if message is None:
            return
        if reason.is_failure:
            remedy = refusal_remedy(str(reason))
            log.error("mqtt_publish_refused", topic=message.topic, reason=str(reason), remedy=remedy)
        self._done.append(message)

    def tell(self) -> None:
        """Call `on_done` of the messages that are done with."""
        while self._done:
            message = self._done.pop(0)
            if message.on_done is not None:
                message.on_done()

    def start_over(self) -> None:
        """The client was replaced: what is in flight is sent again."""
        self.outgoing.put_back(self._flying.values())
        self._flying.clear()

    def _fits(self, message: Message) -> bool:
        size = len(message.topic.encode()) + len(message.payload) + _HEADER
        if size <= self.limits.packet:
            return True
        self.outgoing.dropped += 1
        remedy = refusal_remedy("Packet too large")
        log.error("mqtt_too_large", topic=message.topic, bytes=size, limit=self.limits.packet, remedy=remedy)
        return False
