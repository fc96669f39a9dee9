"""Ingest: MQTT deliveries become Samples, are committed together, and only then acknowledged.

A batch goes to the serving loop before its commit, so a prediction does not wait for the disk;
the acknowledgement goes to the broker after it, so nothing acknowledged can be lost.
"""

from __future__ import annotations

import collections
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from edged.domain.sample import Batch, LabelUpdate, Reading, Rejected
from edged.errors import RejectedSampleError, StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from edged.clock import Clock
    from edged.config import StorageConfig
    from edged.domain.sample import LabelReading, LabelValue
    from edged.domain.schema import Schema

log = get_logger("edged.ingest")

IDLE_SECONDS = 0.5
EVICT_SECONDS = 5.0
PAUSE_AFTER_FAILURE = 1.0


class Delivery(Protocol):
    """One MQTT message as the session hands it over."""

    topic: str
    payload: bytes
    mid: int
    dup: bool
    epoch: int
    received: float


class SampleStore(Protocol):
    """Where samples become durable."""

    def next_offset(self) -> int:
        """The first offset that was never given."""

    def commit(
        self,
        samples: Batch | None,
        labels: Sequence[LabelUpdate] = (),
        quarantined: Sequence[Rejected] = (),
        packets: Iterable[tuple[int, int]] = (),
    ) -> None:
        """One durable transaction; StorageError when it failed."""

    def find_many(self, labels: Sequence[LabelReading]) -> list[int | None]:
        """Offsets of the samples that labels belong to."""

    def recent_packets(self, limit: int) -> list[tuple[int, int]]:
        """Packet id and checksum of the newest rows."""

    def evict(self, now: float) -> int:
        """Keep the store within its bounds."""


@dataclass
class _Group:
    """What one group commit collects."""

    readings: list[Reading] = field(default_factory=list)
    received: list[float] = field(default_factory=list)
    packets: list[tuple[int, int] | None] = field(default_factory=list)
    labels: list[LabelReading] = field(default_factory=list)
    label_packets: list[tuple[int, int]] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


class Redelivery:
    """Recognises messages that were stored but whose acknowledgement never reached the broker.

    A redelivery carries the DUP flag, the same packet id and the same content as one of the newest
    `window` stored messages: more cannot be unacknowledged at once. Fixed memory: one checksum and
    one position for each of the 65,536 packet ids.
    """

    def __init__(self, recent: Sequence[tuple[int, int]], window: int) -> None:
        self._checksums = np.zeros(1 << 16, np.int64)
        self._positions = np.full(1 << 16, -(1 << 62), np.int64)
        self._count = 0
        self._window = window
        self.stored(recent)

    def seen(self, delivery: Delivery, checksum: int) -> bool:
        """Whether this delivery has been stored already."""
        if not delivery.dup or self._count - self._positions[delivery.mid] > self._window:
            return False
        return bool(self._checksums[delivery.mid] == checksum)

    def stored(self, packets: Sequence[tuple[int, int] | None]) -> None:
        """These are durable now, oldest first."""
        known = [packet for packet in packets if packet is not None and packet[0]]
        if not known:
            return
        mids, checksums = np.array(known, np.int64).T
        self._checksums[mids] = checksums
        self._positions[mids] = self._count + np.arange(len(known))
        self._count += len(known)


class Ingest:
    """The ingest thread and the inbox that the network thread fills."""

    def __init__(
        self,
        *,
        config: StorageConfig,
        schema: Schema,
        unacknowledged: int,
        store: SampleStore,
        clock: Clock,
        decode: Callable[[str, bytes], Reading],
        decode_label: Callable[[str, bytes], LabelReading] | None,
        is_label: Callable[[str], bool],
        acknowledge: Callable[[Sequence[Any]], None],
        redeliver: Callable[[], None],
        on_batch: Callable[[Batch, NDArray[np.float64]], None],
        on_labels: Callable[[list[LabelUpdate]], None],
        on_committed: Callable[[int], None],
        on_rejected: Callable[[Rejected], None],
        beat: Callable[[], object],
        forecast: tuple[tuple[int, ...], int] | None = None,
    ) -> None:
        self._config = config
        self._schema = schema
        self._store = store
        self._clock = clock
        self._decode = decode
        self._decode_label = decode_label
        self._is_label = is_label
        self._acknowledge = acknowledge
        self._redeliver = redeliver
        self._on_batch = on_batch
        self._on_labels = on_labels
        self._on_committed = on_committed
        self._on_rejected = on_rejected
        self._beat = beat
        self._forecast = Forecast(*forecast) if forecast is not None else None
        window = 2 * unacknowledged + config.commit_rows
        self._redelivery = Redelivery(store.recent_packets(window), window)
        self._next_offset = store.next_offset()
        self._inbox: collections.deque[Delivery] = collections.deque()
        self._wake = threading.Event()
        self._stopping = False
        self._given_up = 0
        self._evicted = 0.0
        self._thread = threading.Thread(target=self._loop, name="ingest", daemon=True)
        self.received = 0
        self.redelivered = 0
        self.failed_commits = 0
        self.problem: str | None = None
        self.lag: float | None = None
        self.paused = False

    # ---- the network thread's side ---------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery; nothing but an append, for this runs on the network thread."""
        self._inbox.append(delivery)
        if not self._wake.is_set():
            self._wake.set()

    @property
    def waiting(self) -> int:
        """Deliveries not yet looked at."""
        return len(self._inbox)

    # ---- the ingest thread -----------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Commit what is here, then end."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)

    def _loop(self) -> None:
        while not (self._stopping and not self._inbox):
            if not self._wake.wait(IDLE_SECONDS):
                self._beat()
                continue
            self._wait_for_company()
            deliveries = self._take()
            try:
                if deliveries:
                    self.work(deliveries)
            except StorageError as problem:
                self._commit_failed(problem)
                self._give_up(deliveries)
            except Exception:
                log.exception("ingest_failed", messages=len(deliveries))
                self._give_up(deliveries)
            self._beat()

    def _wait_for_company(self) -> None:
        """Let a commit gather more messages while they keep coming, up to `commit_delay`."""
        if self._stopping or self._config.commit_delay == 0:
            return
        deadline = time.monotonic() + self._config.commit_delay
        before = -1
        while before < len(self._inbox) < self._config.commit_rows and time.monotonic() < deadline:
            before = len(self._inbox)
            time.sleep(min(0.001, self._config.commit_delay))

    def _take(self) -> list[Delivery]:
        self._wake.clear()
        count = min(len(self._inbox), self._config.commit_rows)
        deliveries = [self._inbox.popleft() for _ in range(count)]
        if self._inbox or self._stopping:
            self._wake.set()
        return [delivery for delivery in deliveries if delivery.epoch > self._given_up]

    def _give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Have these delivered again, with whatever came after them: order must not suffer.

        The connection still brings messages for a moment; stored now, they would overtake.
        """
        self._given_up = deliveries[-1].epoch
        self._redeliver()
        self._idle()

    def work(self, deliveries: Sequence[Delivery]) -> None:
        """Decode, hand over for prediction, commit, acknowledge.

        Raises
        ------
        StorageError
            When the commit failed: nothing was acknowledged, the broker will deliver again.
        """
        group = self._decode_all(deliveries)
        batch, received = self._assemble(group)
        self.received += len(deliveries)
        if batch is not None:
            self._on_batch(batch, received)
        updates = self._forecast.update(batch) if self._forecast is not None and batch is not None else []
        try:
            self._store.commit(batch, updates, group.rejected)
        except StorageError:
            if self._forecast is not None:
                self._forecast.take_back()
            raise
        # Known from now on, even if the commit of labels fails and all of them come again.
        self._redelivery.stored([*group.packets, *(r.packet for r in group.rejected)])
        updates += self._join_labels(group)
        self._redelivery.stored(group.label_packets)
        self._acknowledge(deliveries)
        self.problem = None
        if batch is not None:
            self.lag = round(float(batch.ingested[-1] - batch.ts[-1]), 3)
        self._after_commit(batch, updates, group.rejected)

    def _after_commit(
        self, batch: Batch | None, updates: list[LabelUpdate], rejected: Sequence[Rejected]
    ) -> None:
        if updates:
            self._on_labels(updates)
        for item in rejected:
            self._on_rejected(item)
        labelled = sum(label is not None for label in batch.labels) if batch is not None else 0
        self._on_committed(labelled + len(updates))
        now = self._clock.monotonic()
        if now - self._evicted >= EVICT_SECONDS:
            self._evicted = now
            self._store.evict(self._clock.now())

    def _commit_failed(self, problem: StorageError) -> None:
        self.failed_commits += 1
        self.problem = problem.line()
        log.error("commit_failed", problem=problem.line())

    def _idle(self) -> None:
        time.sleep(PAUSE_AFTER_FAILURE)

    # ---- from messages to a batch ----------------------------------------------------------

    def _decode_all(self, deliveries: Sequence[Delivery]) -> _Group:
        group, here = _Group(), set[tuple[int, int]]()
        for delivery in deliveries:
            checksum = zlib.crc32(delivery.payload, zlib.crc32(delivery.topic.encode()))
            packet = (delivery.mid, checksum)
            if delivery.dup and (packet in here or self._redelivery.seen(delivery, checksum)):
                self.redelivered += 1
                continue
            here.add(packet)
            try:
                if self._decode_label is not None and self._is_label(delivery.topic):
                    group.labels.append(self._decode_label(delivery.topic, delivery.payload))
                    group.label_packets.append(packet)
                    continue
                group.readings.append(self._decode(delivery.topic, delivery.payload))
            except Exception as problem:  # whatever a message does to a decoder, the stream goes on
                if not isinstance(problem, RejectedSampleError):
                    log.exception("decoder_failed", topic=delivery.topic)
                    problem = RejectedSampleError("internal", f"the decoder failed: {problem!r}"[:200])
                group.rejected.append(self._reject(delivery, packet, problem))
                continue
            group.received.append(delivery.received)
            group.packets.append(packet)
        return group

    def _reject(self, delivery: Delivery, packet: tuple[int, int], problem: RejectedSampleError) -> Rejected:
        return Rejected(
            self._clock.now(),
            delivery.topic,
            problem.reason,
            delivery.payload,
            problem.what,
            packet,
        )

    def _assemble(self, group: _Group) -> tuple[Batch | None, NDArray[np.float64]]:
        received = np.asarray(group.received, np.float64)
        count = len(group.readings)
        if count == 0:
            return None, received
        now = self._clock.now()
        offsets = np.arange(self._next_offset, self._next_offset + count, dtype=np.int64)
        self._next_offset += count
        batch = Batch(
            offsets,
            [r.key for r in group.readings],
            np.array([now if r.ts is None else r.ts for r in group.readings], np.float64),
            np.full(count, now, np.float64),
            np.array([r.values for r in group.readings], np.float32),
            [r.label for r in group.readings],
            [r.id for r in group.readings],
            group.packets,
        )
        return batch, received

    def _join_labels(self, group: _Group) -> list[LabelUpdate]:
        """Labels that came by themselves: join, commit, and quarantine those without a sample."""
        if not group.labels:
            return []
        found = self._store.find_many(group.labels)
        updates, lost = [], []
        now = self._clock.now()
        for label, offset in zip(group.labels, found, strict=True):
            if offset is not None:
                updates.append(LabelUpdate(offset, label.label, label.ts or now))
            else:
                what = f"no sample for label (id {label.id!r}, key {label.key!r}, ts {label.ts!r})"
                lost.append(Rejected(now, "label", "label_unmatched", b"", what))
        self._store.commit(None, updates, lost, group.label_packets)
        group.rejected.extend(lost)
        return updates


class Forecast:
    """Makes the label of a sample from a later one of the same key, `horizon` samples ahead."""

    def __init__(self, columns: tuple[int, ...], horizon: int) -> None:
        self._columns = list(columns)
        self._waiting: dict[str, collections.deque[int]] = {}
        self._horizon = horizon
        self._before: dict[str, collections.deque[int]] = {}

    def take_back(self) -> None:
        """Undo the last `update`: its samples were not stored and will come again."""
        self._waiting.update(self._before)
        self._before = {}

    def update(self, batch: Batch) -> list[LabelUpdate]:
        """Labels for the samples whose future has now come."""
        updates = []
        self._before = {key: self._waiting.get(key, collections.deque()).copy() for key in set(batch.keys)}
        values = batch.x[:, self._columns].tolist()
        for key, offset, ts, value in zip(
            batch.keys, batch.offsets.tolist(), batch.ts.tolist(), values, strict=True
        ):
            waiting = self._waiting.setdefault(key, collections.deque())
            if len(waiting) == self._horizon:
                label: LabelValue = value[0] if len(value) == 1 else tuple(value)
                updates.append(LabelUpdate(waiting.popleft(), label, ts))
            waiting.append(offset)
        return updates
