"""Messages waiting to be sent: bounded in count, whatever happens to the connection."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edged.mqtt.delivery import Message


class Outgoing:
    """Two queues, one for QoS 0 and one for QoS 1, of at most `limit` messages each.

    A full QoS 0 queue loses its oldest message, which `dropped` counts; a full QoS 1 queue refuses
    the new one, so that its sender keeps it.

    >>> from edged.mqtt.delivery import Message
    >>> queue = Outgoing(1)
    >>> queue.put(Message("a", b"1")), queue.put(Message("a", b"2")), queue.dropped
    (True, True, 1)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._fast: deque[Message] = deque()
        self._sure: deque[Message] = deque()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._fast) + len(self._sure)

    @property
    def fast(self) -> int:
        """How many QoS 0 messages wait."""
        return len(self._fast)

    @property
    def sure(self) -> int:
        """How many QoS 1 messages wait."""
        return len(self._sure)

    def room(self, qos: int) -> int:
        """How many more messages of this QoS can be put before any is dropped or refused."""
        return self._limit - (len(self._sure) if qos else len(self._fast))

    def put(self, message: Message) -> bool:
        """Queue a message; False when it was refused."""
        with self._lock:
            if message.qos:
                if len(self._sure) >= self._limit:
                    return False
                self._sure.append(message)
                return True
            if len(self._fast) >= self._limit:
                self._fast.popleft()
                self.dropped += 1
            self._fast.append(message)
            return True

    def next_fast(self) -> Message | None:
        """Take the oldest QoS 0 message."""
        with self._lock:
            return self._fast.popleft() if self._fast else None

    def next_sure(self) -> Message | None:
        """Take the oldest QoS 1 message."""
        with self._lock:
            return self._sure.popleft() if self._sure else None

    def forget_fast(self) -> None:
        """Drop the QoS 0 messages that wait."""
        with self._lock:
            self._fast.clear()

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return QoS 1 messages to the front, in their order."""
        with self._lock:
            self._sure.extendleft(reversed(list(messages)))
