"""What comes from the broker: a queue of it, and updates in parts that are put together."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

from edged.errors import RejectedUpdateError

if TYPE_CHECKING:
    from edged.domain.federated.messages import UpdateHeader
    from edged.mqtt.client.message import ReceivedMessage


class Inbox:
    """Deliveries, as the network thread puts them in: at most `limit`.

    Where it is full, the network thread waits, and so does the broker, whose own bound does not always hold:
    mosquitto 2.0.11 had a thousand messages under way where 256 were allowed.
    """

    PATIENCE = 5.0

    def __init__(self, limit: int) -> None:
        self._queue: queue.SimpleQueue[ReceivedMessage | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(limit)

    def put(self, delivery: ReceivedMessage) -> bool:
        """Add a delivery, from another thread; False if there was no room for `PATIENCE` seconds."""
        if not self._room.acquire(timeout=self.PATIENCE):
            return False
        self._queue.put(delivery)
        return True

    def wake(self) -> None:
        """Let `receive` return, as there is other work."""
        self._queue.put(None)

    def receive(self, most: int, timeout: float) -> list[ReceivedMessage]:
        """Return waiting deliveries, at most `most`; none if none arrive within `timeout` seconds."""
        found: list[ReceivedMessage] = []
        until = time.monotonic() + timeout
        while len(found) < most:
            try:
                left = 0.0 if found else max(0.0, until - time.monotonic())
                delivery = self._queue.get(timeout=left) if left else self._queue.get_nowait()
            except queue.Empty:
                break
            if delivery is None:
                break
            found.append(delivery)
            self._room.release()
        return found


class PartialUpdates:
    """Updates of which not all parts have come; the oldest give way when they hold more than `limit` bytes.

    >>> from edged.domain.federated.messages import UpdateHeader
    >>> parts, update = PartialUpdates(100), UpdateHeader("a", 1, "0", "0", 1, None, 1.0, 4, "0", parts=2)
    >>> parts.add(update, b"ab") is None, parts.held
    (True, 2)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[tuple[str, int], tuple[str, dict[int, bytes]]] = {}
        self.held = 0

    def add(self, update: UpdateHeader, piece: bytes) -> bytes | None:
        """The whole blob if no part is missing now; RejectedUpdateError if they are more than was said."""
        if update.parts == 1:
            return piece
        key = update.device, update.round
        if key in self._waiting and self._waiting[key][0] != update.sha256:
            self._drop(key)
        _, pieces = self._waiting.setdefault(key, (update.sha256, {}))
        self.held += len(piece) - len(pieces.get(update.part, b""))
        pieces[update.part] = piece
        if sum(map(len, pieces.values())) > update.bytes:
            self._drop(key)
            raise RejectedUpdateError("size", "its parts are more than its line says")
        if len(pieces) < update.parts:
            self._bound(key)
            return None
        self._drop(key)
        return b"".join(pieces[part] for part in range(update.parts))

    def _bound(self, newest: tuple[str, int]) -> None:
        # A device that goes on with its parts is younger than one that does not.
        self._waiting[newest] = self._waiting.pop(newest)
        while self.held > self._limit and len(self._waiting) > 1:
            self._drop(next(iter(self._waiting)))

    def _drop(self, key: tuple[str, int]) -> None:
        self.held -= sum(map(len, self._waiting.pop(key)[1].values()))
