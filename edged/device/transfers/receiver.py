"""Chunks that come in over MQTT: taken from the network thread, written down, acknowledged."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, Protocol

from edged.errors import EdgedError, RefusedError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from edged.storage.journal.transfers import Transfer, TransferStaging

MOST_WAITING = 64
MAX_CHUNK = 1024**2
MOST_DIGITS = 5

log = get_logger("edged.receiving")


class ChunkDelivery(Protocol):
    """A chunk as the session hands it over."""

    topic: str
    payload: bytes
    retain: bool


class TransferReceiver:
    """Writes chunks down on a thread of its own, which is started by the first.

    Chunks of a transfer that nobody has announced, retained ones, damaged ones and those that come faster
    than the disk takes them are dropped and counted: whoever sends them is told which ones are missing.

    Parameters
    ----------
    staging
        Where they gather.
    acknowledge
        Told of each delivery that is done with.
    complete
        Called with each transfer all of which has come.
    """

    def __init__(
        self,
        staging: TransferStaging,
        *,
        acknowledge: Callable[[list[Any]], None],
        complete: Callable[[Transfer], None],
    ) -> None:
        self._staging = staging
        self._acknowledge = acknowledge
        self._complete = complete
        self._lock = threading.Lock()
        self._queue: queue.Queue[ChunkDelivery | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def receive(self, delivery: ChunkDelivery) -> None:
        """Take a chunk from the network thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="incoming", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(delivery)
        except queue.Full:
            self._drop(delivery)

    def begin(self, transfer: Transfer) -> list[int]:
        """Open a transfer or take it up; what is missing. It goes on where nothing is, or is to be fetched.

        Raises
        ------
        EdgedError
            See `TransferStaging.begin`.
        """
        with self._lock:
            missing = self._staging.begin(transfer)
        if not missing or transfer.note.get("url"):
            self._complete(transfer)
        return missing

    def fill(self, transfer: Transfer, data: bytes) -> None:
        """A transfer of a single chunk that was fetched; RefusedError where it is not what was announced."""
        with self._lock:
            if not self._staging.put(transfer.name, 0, data):
                raise RefusedError("what was fetched is not what was announced", where=transfer.name)

    def resume(self) -> None:
        """Go on with what an earlier process had received whole and not dealt with."""
        transfer = self._staging.transfer
        if transfer is not None and (transfer.note.get("url") or not self._staging.missing()):
            self._complete(transfer)

    def whole(self, transfer: Transfer) -> Path | None:
        """Where a transfer lies; None where it is not (any more) there whole."""
        with self._lock:
            current = self._staging.transfer
            if current is None or (current.name, current.sha256) != (transfer.name, transfer.sha256):
                return None
            return self._staging.whole()

    def end(self, transfer: Transfer) -> None:
        """It has been dealt with."""
        with self._lock:
            current = self._staging.transfer
            if current is not None and current.sha256 == transfer.sha256:
                self._staging.end()

    def stop(self, timeout: float = 5.0) -> None:
        """End after the chunks that wait."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)

    def _loop(self) -> None:
        while (delivery := self._queue.get()) is not None:
            try:
                self._take(delivery)
            except EdgedError as problem:
                log.warning("chunk_not_taken", topic=delivery.topic, problem=problem.line())
                self._drop(delivery)
            except Exception:
                log.exception("receiving_failed")
                self._drop(delivery)

    def _take(self, delivery: ChunkDelivery) -> None:
        name, _, number = delivery.topic.rpartition("/")
        wanted = not delivery.retain and len(delivery.payload) <= MAX_CHUNK and number.isdecimal()
        wanted = wanted and len(number) <= MOST_DIGITS
        with self._lock:
            before = len(self._staging.missing())
            taken = wanted and self._staging.put(name.rpartition("/")[2], int(number), delivery.payload)
            transfer, after = self._staging.transfer, len(self._staging.missing())
        if not taken:
            self._drop(delivery)
            return
        self._acknowledge([delivery])
        if transfer is not None and before and not after:
            self._complete(transfer)

    def _drop(self, delivery: ChunkDelivery) -> None:
        self.dropped += 1
        self._acknowledge([delivery])
