"""What goes over the wire: deliveries coming in, messages going out, and their MQTT 5 properties."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


def paho_properties(packet_type: int) -> Properties:
    """An empty property table of paho for one type of packet."""
    return Properties(packet_type)  # type: ignore[no-untyped-call]


class MessageProperties(NamedTuple):
    """The MQTT 5 properties that edged uses; on MQTT 3.1.1 they are left out without a word.

    `expiry` is in whole seconds.
    """

    response_topic: str | None = None
    correlation: bytes | None = None
    expiry: int | None = None

    def to_paho(self) -> Properties:
        """The same as paho's properties of a PUBLISH packet."""
        properties = paho_properties(PacketTypes.PUBLISH)
        for name, value in zip(_PAHO_NAMES, self, strict=True):
            if value is not None:
                setattr(properties, name, value)
        return properties

    def pack(self) -> bytes:
        """As they stand in a PUBLISH packet, length first."""
        return bytes(self.to_paho().pack())  # type: ignore[no-untyped-call]

    @classmethod
    def from_paho(cls, properties: Properties) -> MessageProperties:
        """Pick the properties we use out of paho's."""
        return cls(*(getattr(properties, name, None) for name in _PAHO_NAMES))


_PAHO_NAMES = ("ResponseTopic", "CorrelationData", "MessageExpiryInterval")


class SharedAcknowledgement:
    """The acknowledgement of a message that several receive: it is due once all have given theirs."""

    def __init__(self, receivers: int) -> None:
        self._left = receivers
        self._lock = threading.Lock()

    def give(self) -> bool:
        """Give one; True for the last of them. Safe from any thread."""
        with self._lock:
            self._left -= 1
            return self._left == 0


@dataclass(slots=True)
class ReceivedMessage:
    """One message as the broker delivered it.

    `mid` is the packet id (0 at QoS 0), valid within its connection `epoch` only; `received` is
    monotonic seconds; `properties` is None when the message carries none, `shared` when it has one receiver.
    """

    topic: str
    payload: bytes
    mid: int
    qos: int
    dup: bool
    retain: bool
    epoch: int
    received: float
    properties: MessageProperties | None = None
    shared: SharedAcknowledgement | None = None

    @property
    def response_topic(self) -> str | None:
        """Topic of the response that the sender named (MQTT 5)."""
        return None if self.properties is None else self.properties.response_topic

    @property
    def correlation(self) -> bytes | None:
        """What the sender recognises the answer by (MQTT 5)."""
        return None if self.properties is None else self.properties.correlation


class OutgoingMessage(NamedTuple):
    """One message on its way out; `on_done` is called once the broker has it (QoS 1)."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: MessageProperties | None = None
    on_done: Callable[[], None] | None = None
