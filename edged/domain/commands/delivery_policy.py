"""Messages that must reach the broker: which goes first, and what is said of a late one."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

_LATE = b',"historical":true}'


class MessageKind(IntEnum):
    """What a message is; the lower goes first, the higher is given up first."""

    EVENT = 0
    WEIGHTS = 1
    METRICS = 2
    PREDICTION = 3


class OutboxMessage(NamedTuple):
    """One message that must arrive; `payload` is a JSON object, except that of weights."""

    kind: MessageKind
    topic: str
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes that count against a cap."""
        return len(self.topic) + len(self.payload)

    @property
    def late_payload(self) -> bytes:
        """What is sent when it could not be sent at once: `historical` says so. Weights stay as they are.

        >>> OutboxMessage(MessageKind.EVENT, "events", b'{"seq":1}').late_payload
        b'{"seq":1,"historical":true}'
        """
        return self.payload if self.kind is MessageKind.WEIGHTS else extended(self.payload, _LATE)


def extended(payload: bytes, more: bytes) -> bytes:
    """A JSON object that is not empty with more fields, which begin with a comma and end with the brace."""
    return payload[:-1] + more
