"""Chunks that come in over MQTT: taken from the network thread, written down, acknowledged."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import Any, Literal

from edged.config import Config
from edged.device.events import Extension
from edged.device.learning.worker import TrainingWorker
from edged.device.transfers.installer import TransferInstaller
from edged.domain.events import TransferOutcome
from edged.domain.training.message import SparseMessage
from edged.errors import EdgedError
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.mqtt.topics import Topics
from edged.storage.journal.transfers import (
    ChunkResult,
    Transfer,
    TransferPurpose,
    TransferStaging,
    announced,
)

MOST_WAITING = 64
MAX_CHUNK = 1024**2
MOST_DIGITS = 5
MISSING_LISTED = 1000

log = get_logger("edged.receiving")


@dataclass(frozen=True)
class TransferProgress(SparseMessage):
    """How a transfer stands that has not ended: at most `MISSING_LISTED` missing chunks, and their topic."""

    state: Literal["receiving", "executing"]
    transfer: str
    topic: str
    missing: tuple[int, ...]


class TransferReceiver(Extension):
    """Opens transfers, gathers their chunks, and has each complete one installed between two training runs.

    A thread of its own, which the first chunk starts, writes them. Chunks of a transfer that nobody has
    announced, retained ones, damaged ones and those that come faster than the disk takes them are dropped and
    counted: `announce` tells their sender which ones are missing.

    `config`: sections `weights` and `install` say whether transfers are accepted. `session` and `topics`
    deliver chunks and have them acknowledged. `staging` keeps the chunks of the present transfer. `installer`
    installs complete transfers. `worker` calls the installer after the present training run.
    """

    def __init__(
        self,
        config: Config,
        session: Session,
        topics: Topics,
        staging: TransferStaging,
        installer: TransferInstaller,
        worker: TrainingWorker,
    ) -> None:
        self._accepts = config.weights.accept or config.install is not None
        self._session, self._topics = session, topics
        self._staging, self._installer, self._worker = staging, installer, worker
        self._queue: queue.Queue[ReceivedMessage | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def start(self) -> None:
        """Subscribe to chunks if transfers are accepted, and continue what an earlier process has begun."""
        if self._accepts:
            self._session.subscribe([self._topics.incoming_weights], 1, self.receive)
            self.resume()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop after writing the chunks that wait."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout)

    def announce(
        self, name: Any, manifest: Any, purpose: TransferPurpose, max_bytes: int
    ) -> TransferOutcome | TransferProgress:
        """Open a transfer, or report how it stands: which chunks are missing, or how it has ended.

        `name` and `manifest`: as the sender gives them. `purpose`: what it is for. `max_bytes`: limit of its
        size. Raises ConfigError when a field is not usable; RefusedError when the device takes no such
        transfer, it is too large, or another is under way.
        """
        purpose = self._installer.admission.announced(purpose)
        transfer = announced(name, manifest, purpose, max_bytes)
        outcome = self._installer.outcome(transfer.name, transfer.sha256)
        if outcome is not None:
            return outcome
        missing = self.open(transfer)
        return TransferProgress(
            "receiving" if missing else "executing",
            transfer.name,
            self._topics.incoming(transfer.name),
            tuple(missing[:MISSING_LISTED]),
        )

    def open(self, transfer: Transfer) -> list[int]:
        """Open or reopen a transfer; return the numbers of missing chunks.

        If none is missing, the transfer is installed. Raises the errors of `TransferStaging.open`.
        """
        missing = self._staging.open(transfer)
        if not missing:
            self._submit(transfer)
        return missing

    def resume(self) -> None:
        """Submit the transfer that an earlier process has received completely and not installed."""
        if self._staging.transfer is not None:
            self.open(self._staging.transfer)

    def receive(self, delivery: ReceivedMessage) -> None:
        """Queue a chunk; called on the network thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="incoming", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait(delivery)
        except queue.Full:
            self._drop(delivery)

    # ---- the thread ------------------------------------------------------------------------

    def _loop(self) -> None:
        while (delivery := self._queue.get()) is not None:
            try:
                self._store(delivery)
            except EdgedError as problem:
                log.warning("chunk_not_taken", topic=delivery.topic, problem=problem.line())
                self._drop(delivery)
            except Exception:
                log.exception("receiving_failed")
                self._drop(delivery)

    def _store(self, delivery: ReceivedMessage) -> None:
        path, _, number = delivery.topic.rpartition("/")
        usable = not delivery.retain and len(delivery.payload) <= MAX_CHUNK
        if not usable or not number.isdecimal() or len(number) > MOST_DIGITS:
            self._drop(delivery)
            return
        result = self._staging.put(path.rpartition("/")[2], int(number), delivery.payload)
        if result is ChunkResult.REFUSED:
            self._drop(delivery)
            return
        self._session.ack([delivery])
        transfer = self._staging.transfer
        if result is ChunkResult.LAST and transfer is not None:
            self._submit(transfer)

    def _submit(self, transfer: Transfer) -> None:
        self._worker.between_runs(lambda: self._installer.install(transfer))

    def _drop(self, delivery: ReceivedMessage) -> None:
        self.dropped += 1
        self._session.ack([delivery])
