"""Messages that must reach the broker: which goes first, what is said of a late one, how fast they go."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

BURST_SECONDS = 0.1
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


class SendRate:
    """A rate in messages a second, with no more at once than a tenth of a second's worth.

    The token bucket of the field (Turner, "New directions in communications", 1986). Times are
    monotonic seconds.

    >>> pace = SendRate(20.0); pace.allowed(10.0), pace.allowed(100.0)
    (2, 2)
    >>> pace.spend(2); pace.allowed(100.0), round(pace.wait(100.0), 3)
    (0, 0.05)
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate * BURST_SECONDS)
        self._tokens = self._most
        self._at = 0.0

    def allowed(self, now: float) -> int:
        """How many may be sent now."""
        self._tokens = min(self._most, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        return int(self._tokens)

    def spend(self, count: int) -> None:
        """Record that `count` messages were sent."""
        self._tokens -= count

    def wait(self, now: float) -> float:
        """Seconds until the next one may be sent."""
        return 0.0 if self.allowed(now) else (1.0 - self._tokens) / self._rate
