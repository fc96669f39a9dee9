"""Ingest: MQTT deliveries become Samples, are committed together, and only then acknowledged.

A batch goes to the serving loop before its commit, so a prediction does not wait for the disk;
the acknowledgement goes to the broker after it, so nothing acknowledged can be lost. A commit waits for
company, `storage.commit_delay` at most: a page of flash is written for one sample as for many. Where
samples are windows of readings, a reading that completes none is committed, too, as a part of its open
window.

While the disk refuses, what has come is held, already predicted, and its commit is tried again: each
sample is predicted once however long that takes. The broker sends no more than may be unacknowledged,
so memory stays bounded; the rest waits at the broker.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from edged.device.ingest.label_join import LabelJoin
from edged.domain.stream.commit_delay import CommitDelay, FlushRequests
from edged.domain.stream.commit_group import CommitBacklog, CommitGroup
from edged.domain.stream.forecast import Forecast
from edged.domain.stream.redelivery import Redelivery, checksum
from edged.domain.stream.sample import Batch, Reading
from edged.domain.stream.windowing import Windowing
from edged.errors import RefusedError, StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from edged.clock import Clock
    from edged.config import Config
    from edged.device.ingest.decoder import SampleDecoder
    from edged.device.ingest.notices import IngestNotices
    from edged.domain.protocols import Broker, Delivery, ModelSupervisor, SampleSink, SampleStore
    from edged.domain.stream.commit_group import Submission
    from edged.domain.stream.redelivery import Packet
    from edged.host.systemd import Watchdog

log = get_logger("edged.ingest")

IDLE_SECONDS = 0.5
GATHER_SECONDS = 0.005  # how long a prediction waits for company while messages keep coming
EVICT_SECONDS = 5.0
INBOX_FACTOR = 5  # times what can be unacknowledged: more is at QoS 0, which nothing else holds back
FIRST_RETRY, LONGEST_RETRY = 0.2, 5.0  # seconds until a failed commit is tried again
GATHERED_BYTES = 1024**2  # payloads beyond which a commit gains nothing by waiting for more
GATHERED = 500  # messages, the same: mosquitto reads acknowledgements one by one, before what follows them
BRISK, GATHERED_BRISKLY = 1 / 400, 100  # seconds between messages below which that would delay many of them
MOST_SUBMITTED = 256  # that wait for the ingest thread
HELD_BYTES = 16 * 1024**2  # payloads of the messages that are held while commits fail
SETTLE_SECONDS = 5.0  # that somebody waits for a commit which he has asked for, at most


class Ingestor:
    """The ingest thread and the inbox that the network thread fills."""

    def __init__(
        self,
        config: Config,
        store: SampleStore,
        *,
        decoder: SampleDecoder,
        broker: Broker,
        serving: SampleSink,
        supervisor: ModelSupervisor,
        notices: IngestNotices,
        clock: Clock,
        watchdog: Watchdog,
    ) -> None:
        stream, unacknowledged = config.stream, config.mqtt.receive_maximum
        schema = stream.to_schema()
        self._config = config.storage
        self._store = store
        self._decoder = decoder
        self.admission = decoder.admission
        self._broker = broker
        self._serving = serving
        self._supervisor = supervisor
        self._notices = notices
        self._clock = clock
        self._watchdog = watchdog
        self._labels_itself = schema.labels_itself
        forecasts = schema.task == "forecast"
        self._forecast = Forecast(stream.forecast_columns, stream.horizon) if forecasts else None
        self.windowing = None if stream.window is None else Windowing(stream.window.rules(), stream.width)
        self._windows_known = False
        self._join = LabelJoin(store, clock, stream.join_expiry)
        self._room = INBOX_FACTOR * unacknowledged + self._config.commit_rows
        window = 2 * unacknowledged + self._config.commit_rows
        self._redelivery = Redelivery(store.recent_packets(window), window)
        self._next_offset = store.next_offset()
        self._inbox: collections.deque[Delivery] = collections.deque()
        self._submitted: collections.deque[Submission] = collections.deque()
        self._taken: list[Submission] = []  # those that are not held yet
        self._backlog = CommitBacklog(
            unacknowledged + self._config.commit_rows, HELD_BYTES, self._config.commit_rows
        )
        self._commit_delay = CommitDelay(self._config.commit_delay)
        self._wake = threading.Event()
        self._flush_requests = FlushRequests()
        self._stopping = False
        self._paused = False
        self._given_up = 0
        self.retry_at = 0.0
        self._retry_in = FIRST_RETRY
        self._failing_since = 0.0
        self._overflowed = False
        self._evicted = 0.0
        self._due = float("inf")
        self._thread = threading.Thread(target=self._loop, name="ingest", daemon=True)
        self.received = 0
        self.redelivered = 0
        self.overrun = 0
        self.failed_commits = 0
        self.problem: str | None = None
        self.lag: float | None = None

    # ---- the network thread's side ---------------------------------------------------------

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery; little more than an append, for this runs on the network thread.

        At QoS 1 the broker holds back what has no room, at QoS 0 it is counted and dropped.
        """
        if not delivery.mid and (self._paused or len(self._inbox) >= self._room):
            self.overrun += 1
            return
        if self._paused and self._inbox and self._inbox[-1].epoch != delivery.epoch:
            self._inbox.clear()  # the broker delivers them again over this connection
        self._inbox.append(delivery)
        if not self._wake.is_set():
            self._wake.set()

    def submit(self, submission: Submission) -> None:
        """Take readings that come by another way than the broker; from any thread, never waits.

        Raises
        ------
        RefusedError
            When ingest is paused or stopped, samples are windows of readings, or too many wait.
        StorageError
            While the disk refuses: nobody else would send them again.
        """
        if self.problem is not None:
            raise StorageError(self.problem)
        if self.windowing is not None:
            raise RefusedError("samples are windows of readings", remedy="send readings to the broker")
        if self._paused or self._stopping:
            raise RefusedError("ingest is paused", remedy="send the command resume")
        if len(self._submitted) >= MOST_SUBMITTED:
            raise RefusedError(f"{MOST_SUBMITTED} submissions are waiting already", remedy="send it later")
        self._submitted.append(submission)
        self._wake.set()

    def flush(self, timeout: float = SETTLE_SECONDS) -> bool:
        """Commit now what was delivered so far, without the commit delay. Call from any other thread.

        Returns
        -------
        Whether it is: False while the disk refuses, or when that takes longer than `timeout` seconds. Of a
        flood, those that wait behind `storage.commit_rows` others are not in it.
        """
        return not self._thread.is_alive() or self._flush_requests.wait(self._wake.set, timeout)

    def pause(self) -> None:
        """Stop accepting messages: the broker keeps those that are not acknowledged, and all later ones."""
        self._paused = True

    def resume(self) -> None:
        """Accept the messages that arrived during the pause, and all later ones."""
        self._paused = False
        self._wake.set()

    @property
    def waiting(self) -> int:
        """Number of deliveries that are not yet acknowledged."""
        return len(self._inbox) + len(self._backlog)

    # ---- the ingest thread -----------------------------------------------------------------

    def start(self) -> None:
        """Start the ingest thread."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Commit what is here, then end; what cannot be committed is left to the broker."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout)

    def _loop(self) -> None:
        while not (self._stopping and not self._inbox):
            self._turn(woken=self._wake.wait(self._patience()))
            self._watchdog.beat("ingest")
        self._turn(woken=True)
        self._flush_requests.close()

    def _turn(self, *, woken: bool) -> None:
        deliveries: list[Delivery] = []
        if woken and not self._paused:
            self._gather()
        self._wake.clear()
        asked, flushed = self._flush_requests.start_turn(), False
        try:
            if self._paused:
                self._stay()
            elif self._inbox:
                deliveries = self._receive()
                self.take_in(deliveries)
            self._take_in_submitted()
            self._due = self.retry_at if asked else self._settle_at()
            if self._stopping or time.monotonic() >= self._due:
                self.commit_backlog()
                self._due = self._settle_at()
            flushed = self._backlog.first is None
            self._evict()
        except Exception:
            log.exception("ingest_failed", messages=self.waiting + len(deliveries))
            self._start_over(deliveries)
            self._due = self.retry_at
        self._flush_requests.finish_turn(asked, flushed=flushed)

    def _stay(self) -> None:
        if self._stopping:
            self._inbox.clear()  # not acknowledged: the broker has them

    def _patience(self) -> float:
        return min(IDLE_SECONDS, max(0.0, self._due - time.monotonic()))

    def _settle_at(self) -> float:
        """When what is held is committed: it has waited for company, or the disk gets another chance."""
        if self._backlog.first is None:
            return float("inf")
        if self.problem is not None or self._backlog.awaited:
            return self.retry_at
        # Half of what the broker may send unacknowledged: it must not run dry while the disk is at work.
        gathered = GATHERED_BRISKLY if self._commit_delay.gap < BRISK else GATHERED
        enough = min(self._config.commit_rows, gathered, max(1, self._broker.in_flight // 2))
        if len(self._backlog) >= enough or self._backlog.payload_bytes >= GATHERED_BYTES:
            return self.retry_at
        return max(self.retry_at, self._commit_delay.due)

    def _gather(self) -> None:
        """Let a batch gather more messages while they keep coming, for a moment."""
        if self._stopping or self._config.commit_delay == 0 or self._commit_delay.gap > GATHER_SECONDS:
            return
        deadline = time.monotonic() + GATHER_SECONDS
        before = -1
        while before < len(self._inbox) < self._config.commit_rows and time.monotonic() < deadline:
            before = len(self._inbox)
            time.sleep(0.001)

    def _receive(self) -> list[Delivery]:
        count = min(len(self._inbox), self._config.commit_rows)
        deliveries = [self._inbox.popleft() for _ in range(count)]
        if self._inbox:
            self._wake.set()
        return deliveries

    def _take_in_submitted(self) -> None:
        """What came by another way becomes samples like the rest; the broker has no copy of it."""
        group, readings, received = CommitGroup(), list[Reading](), list[float]()
        self._taken = group.submissions
        while self._submitted and len(readings) < self._config.commit_rows:
            submission = self._submitted.popleft()
            self._taken.append(submission)
            if not all(self._decoder.admit(reading) for reading in submission.readings):
                self._taken.pop().refused(
                    RefusedError("this key exceeds its rate limit", where="stream.key_rate")
                )
                continue
            submission.placed(self._next_offset + len(readings))
            readings += submission.readings
            received += [submission.received] * len(submission.readings)
        if self._submitted:
            self._wake.set()
        if not readings:
            return
        self.received += len(readings)
        now = self._clock.now()
        ts = self.admission.event_times([reading.ts for reading in readings], now)
        first, self._next_offset = self._next_offset, self._next_offset + len(readings)
        batch = Batch.of(readings, [None] * len(readings), first=first, now=now, ts=ts)
        group.batches.append(batch)
        self._serving.submit(batch, np.asarray(received, np.float64))
        if self._forecast is not None:
            group.updates = self._forecast.update(batch)
        self._backlog.add(group)
        self._commit_delay.record_arrival(len(readings), time.monotonic())
        self._taken = []

    def work(self, deliveries: Sequence[Delivery]) -> None:
        """Decode, hand over for prediction, commit, acknowledge; what cannot be committed is held."""
        self.take_in(deliveries)
        self.commit_backlog()

    def take_in(self, deliveries: Sequence[Delivery]) -> None:
        """Decode and hand over for prediction; held until `commit_backlog` has made it durable."""
        self.received += len(deliveries)
        if self.windowing is not None and not self._windows_known:
            self.windowing.restore(self._store.open_windows())
            self._windows_known = True
        group, received = self._decode_all(deliveries)
        if not group.deliveries:
            return
        batches = list(group.batches)
        if self._forecast is not None:
            group.updates = [update for batch in batches for update in self._forecast.update(batch)]
        self._backlog.add(group)
        self._commit_delay.record_arrival(len(group.deliveries), time.monotonic())
        for batch in batches:
            self._serving.submit(batch, received)

    def commit_backlog(self) -> None:
        """Commit and acknowledge the buffered groups, oldest first; after a failure they stay buffered."""
        while (group := self._backlog.first) is not None:
            try:
                self._store_group(group)
            except StorageError as problem:
                self._commit_failed(problem)
                return
            self._hold_back(len(group.deliveries))
            self._broker.ack(group.deliveries)
            self._backlog.done()
            for submission in group.submissions:
                submission.stored()
            self._after_commit(group)
            self._watchdog.beat("ingest")
        self._commit_delay.committed()
        if self.problem is not None:
            self._recovered()

    def _store_group(self, group: CommitGroup) -> None:
        batch = group.batch
        if not group.stored:
            if not (group.tried and batch is not None and self._is_stored(batch)):
                group.tried = True
                self._store.commit(batch, group.updates, group.rejected, group.packets, group.opened)
            # Known from now on, even if the commit of labels fails and all of them come again.
            packets = batch.packets if batch is not None else []
            self._redelivery.stored([*packets, *group.packets, *(r.packet for r in group.rejected)])
            group.stored = True
        group.updates += self._join.join(group)
        self._redelivery.stored(group.label_packets)

    def _is_stored(self, batch: Batch) -> bool:
        """After an error never assume: the commit may have come through all the same."""
        return self._store.next_offset() > int(batch.offsets[-1])

    def _hold_back(self, messages: int) -> None:
        """Acknowledge no faster than is allowed: the broker keeps what comes meanwhile."""
        until = time.monotonic() + self.admission.pause(messages, self._clock.monotonic())
        while not self._stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, IDLE_SECONDS))
            self._watchdog.beat("ingest")

    def _after_commit(self, group: CommitGroup) -> None:
        batch = group.batch
        labelled = 0
        if batch is not None:
            self.lag = round(max(0.0, float(batch.ingested[-1] - batch.ts[-1])), 3)
            labelled = sum(label is not None for label in batch.labels)
        if group.updates:
            self._serving.label(group.updates)
        for item in group.rejected:
            self._notices.rejected(item)
        labelled += len(group.updates)
        if labelled or self._labels_itself:
            self._supervisor.wake()
        if batch is not None and self.windowing is None:
            self._decoder.watch(batch.keys, batch.x)
        self._evict()

    def _evict(self) -> None:
        """What is too old goes even when nothing comes. A disk that refuses is told of by the next commit."""
        now = self._clock.monotonic()
        if now - self._evicted < EVICT_SECONDS:
            return
        self._evicted = now
        try:
            self._store.evict(self._clock.now())
        except StorageError as problem:
            log.warning("eviction_failed", problem=problem.line())

    # ---- while commits fail ----------------------------------------------------------------

    def _commit_failed(self, problem: StorageError) -> None:
        now, line = time.monotonic(), problem.line()
        self.failed_commits += 1
        if self.problem is None:
            self._failing_since, self._retry_in = now, FIRST_RETRY
        else:
            self._retry_in = min(LONGEST_RETRY, 2 * self._retry_in)
        self.retry_at = now + self._retry_in
        if self.problem != line:
            self.problem = line
            log.error("commit_failed", problem=line, remedy="tried again; nothing is acknowledged meanwhile")
            self._notices.problem_changed()

    def _recovered(self) -> None:
        self.problem = None
        seconds = round(time.monotonic() - self._failing_since, 1)
        log.info("commits_go_on", after_s=seconds, overflowed=self._overflowed)
        if self._overflowed:
            self._overflowed = False
            self._broker.drop()
        self._notices.problem_changed()

    def _start_over(self, deliveries: Sequence[Delivery]) -> None:
        """After an error that nobody foresaw: have everything that is here delivered again.

        What still comes over the old connection is left out, so that it does not overtake. Nobody delivers
        submissions again: they are refused.
        """
        for submission in [*self._taken, *self._backlog.submissions]:
            submission.refused(StorageError("ingest failed", remedy="send it again: it may not be stored"))
        self._taken = []
        newest = deliveries[-1].epoch if deliveries else 0
        self._given_up = max(self._given_up, self._backlog.newest_epoch, newest)
        self._backlog.clear()
        self._windows_known = False  # those here are ahead of what is stored
        self._broker.drop()
        self.retry_at = time.monotonic() + LONGEST_RETRY

    def _leave_out(self, delivery: Delivery, beside: int) -> bool:
        """Whether a delivery, and all that follow it, is left to a later one: no more can be held.

        Only brokers that send more than we asked for get us there (MQTT 3.1.1 knows no limit), and
        senders of QoS 0, whose messages are lost then.
        """
        if delivery.epoch <= self._given_up:
            return True
        if self._backlog.has_room(delivery, beside):
            return False
        self._given_up = delivery.epoch
        self._overflowed = True
        return True

    # ---- from messages to a batch ----------------------------------------------------------

    def _decode_all(self, deliveries: Sequence[Delivery]) -> tuple[CommitGroup, NDArray[np.float64]]:
        group = CommitGroup()
        readings: list[Reading] = []
        received: list[float] = []
        packets: list[Packet | None] = []
        for delivery in deliveries:
            packet = (delivery.mid, checksum(delivery.topic, delivery.payload))
            if delivery.dup and self._known(delivery, packet, group):
                self.redelivered += 1
                continue
            if self._leave_out(delivery, len(group.deliveries)):
                continue
            group.deliveries.append(delivery)
            self._backlog.record(packet, delivery)
            found = self._decoder.decode(delivery, packet, group)
            if isinstance(found, Reading):
                readings.append(found)
                received.append(delivery.received)
                packets.append(packet)
            elif found:
                readings += found
                received += [delivery.received] * len(found)
                # One message counts once among those that the broker may deliver again.
                packets += [None] * len(found)
                group.packets += [packet] if packet[0] else []
        if not readings:
            return group, np.empty(0)
        now = self._clock.now()
        if self.windowing is not None:
            group.packets += [packet for packet in packets if packet is not None and packet[0]]
            readings, ts, received = self._decoder.cut(self.windowing, readings, received, now)
            packets = [None] * len(readings)
            group.opened = self.windowing.changes()
        else:
            ts = self.admission.event_times([reading.ts for reading in readings], now)
        if readings:
            group.batches.append(Batch.of(readings, packets, first=self._next_offset, now=now, ts=ts))
            self._next_offset += len(readings)
        return group, np.asarray(received, np.float64)

    def _known(self, delivery: Delivery, packet: Packet, group: CommitGroup) -> bool:
        """Whether a redelivery is here already or even stored; it is then acknowledged, not read."""
        if self._redelivery.seen(packet):
            group.deliveries.append(delivery)
            return True
        return self._backlog.renew(packet, delivery.epoch)
