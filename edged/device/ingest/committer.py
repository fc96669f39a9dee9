"""Group commit: what was decoded becomes durable together, is acknowledged, and only then acted on.

The acknowledgement goes to the broker after the commit, so nothing acknowledged can be lost. A commit waits
for company, `storage.commit_delay` at most: a page of flash is written for one sample as for many.

While the disk refuses, groups are held, already predicted, and their commit is tried again: each sample is
predicted once however long that takes. The broker sends no more than may be unacknowledged, so memory stays
bounded; the rest waits at the broker.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from edged.clock import Ages, Clock
from edged.config import Config
from edged.device.ingest.decoder import SampleDecoder
from edged.device.ingest.notices import IngestNotices
from edged.domain.commits.commit_delay import CommitDelay
from edged.domain.commits.commit_group import CommitBacklog, CommitGroup, Packet, Redelivery, Submission
from edged.domain.protocols import Broker, ModelSupervisor, SampleSink
from edged.domain.stream.sample import Batch, LabelUpdate, Rejected
from edged.errors import StorageError
from edged.host.systemd import Watchdog
from edged.host.turns import Turns, TurnThreads
from edged.logs import disk_may_refuse, get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.storage.samples.log import SampleLog

log = get_logger("edged.ingest")

EVICT_SECONDS, PUT_OFF_SECONDS = 5.0, 0.5
STEP_SECONDS = 0.5  # of an acknowledgement that waits: between two signs of life
FIRST_RETRY, LONGEST_RETRY = 0.2, 5.0  # seconds until a failed commit is tried again
GATHERED_BYTES = 1024**2  # payloads beyond which a commit gains nothing by waiting for more
GATHERED = 500  # messages, the same: mosquitto reads acknowledgements one by one, before what follows them
BRISK, GATHERED_BRISKLY = 1 / 400, 100  # seconds between messages below which that would delay many of them
HELD_BYTES = 16 * 1024**2  # payloads of the messages that are held while commits fail


class GroupCommitter:
    """Commits groups of messages, oldest first, acknowledges them, and reports what became durable.

    All methods but `stop` are called on the ingest thread; the counters may be read from any.

    `config`: how many messages may be unacknowledged, how long a commit waits, when a label is too late.
    `store` makes groups durable. `broker` gets the acknowledgements. `serving` gets the labels that found
    their samples. `supervisor` is woken when labels became durable. `decoder` watches durable samples for
    stuck sensors; its admission says how fast to acknowledge. `notices` reports quarantined messages, and
    whether commits fail. `clock` gives the age of samples and labels. `watchdog` is shown that the loop
    `ingest` works.
    """

    def __init__(
        self,
        config: Config,
        store: SampleLog,
        *,
        broker: Broker,
        serving: SampleSink,
        supervisor: ModelSupervisor,
        decoder: SampleDecoder,
        notices: IngestNotices,
        clock: Clock,
        watchdog: Watchdog,
    ) -> None:
        unacknowledged = config.mqtt.constants.receive_maximum
        rows = config.storage.constants.commit_rows
        self._rows = rows
        self._store = store
        self._broker = broker
        self._serving = serving
        self._supervisor = supervisor
        self._decoder = decoder
        self._notices = notices
        self._clock = clock
        self._watchdog = watchdog
        self._labels_itself = config.stream.to_schema().labels_itself
        self._windows = config.stream.window is not None
        self._join = LabelJoin(store, clock, config.stream.join_expiry, decoder)
        window = 2 * unacknowledged + rows
        self._redelivery = Redelivery(store.recent_packets(window), window)
        self._backlog = CommitBacklog(unacknowledged + rows, HELD_BYTES, rows)
        self.delay = CommitDelay(config.storage.commit_delay)
        self._stopping = False
        self._given_up = 0
        self._overflowed = False
        self._turns = Turns(TurnThreads("ingest", 1))
        self.due = float("inf")
        """Monotonic time of the next commit; infinite while there is nothing to commit."""

        self.retry_at = 0.0
        self._retry_in = FIRST_RETRY
        self._failing_since = 0.0
        self._evicted = 0.0
        self.redelivered = 0
        self.failed_commits = 0
        self.problem: str | None = None
        self.lag: float | None = None

    @property
    def waiting(self) -> int:
        """Number of deliveries that are buffered and not yet acknowledged."""
        return len(self._backlog)

    def start(self, turns: Turns) -> None:
        """Wait from now on in the turns of the ingest loop."""
        self._turns = turns

    # ---- what is decoded -------------------------------------------------------------------

    def accept(self, delivery: ReceivedMessage, packet: Packet, group: CommitGroup) -> bool:
        """Put a delivery into `group`; False if it is not to be decoded.

        A redelivery of a stored message is only acknowledged with the group, that of a buffered one takes
        its place. When no more can be buffered, this delivery and all that follow it over the connection are
        left to a later one. Only brokers that send more than we asked for get us there (MQTT 3.1.1 knows no
        limit), and senders of QoS 0, whose messages are lost then.
        """
        if delivery.dup:
            stored = self._redelivery.seen(packet)
            if stored:
                group.deliveries.append(delivery)
            if stored or self._backlog.renew(packet, delivery.epoch):
                self.redelivered += 1
                return False
        if delivery.epoch <= self._given_up:
            return False
        if not self._backlog.has_room(delivery, len(group.deliveries)):
            self._given_up = delivery.epoch
            self._overflowed = True
            return False
        group.deliveries.append(delivery)
        self._backlog.record(packet, delivery)
        return True

    def add(self, group: CommitGroup) -> None:
        """Buffer a decoded group until `commit_due` or `commit` has made it durable."""
        self._backlog.add(group)
        submitted = sum(len(submission.readings) for submission in group.submissions)
        received = [delivery.received for delivery in group.deliveries] or [time.monotonic()]
        # Samples by the clock come without a message.
        self.delay.record_arrival(max(1, len(group.deliveries) + submitted), received[0], received[-1])

    # ---- commits ---------------------------------------------------------------------------

    def commit_due(self, *, at_once: bool, later: bool = False) -> bool:
        """Commit what has waited long enough, with `at_once` all; evict samples that are too old.

        With `later` what has only waited for company waits for a turn that comes by itself, `PUT_OFF_SECONDS`
        at most: others need this thread.

        Returns
        -------
        Whether all that was added is durable.
        """
        self.due = self.retry_at if at_once else self._next_commit()
        due = self.due + PUT_OFF_SECONDS if later and self.due > self.retry_at else self.due
        if self._stopping or time.monotonic() >= due:
            self.commit()
            self.due = self._next_commit()
        self._evict()
        return self._backlog.first is None

    def _next_commit(self) -> float:
        """When what is held is committed: it has waited for company, or the disk gets another chance."""
        if self._backlog.first is None:
            return float("inf")
        if self.problem is not None or self._backlog.awaited:
            return self.retry_at
        # Half of what the broker may send unacknowledged: it must not run dry while the disk is at work.
        gathered = GATHERED_BRISKLY if self.delay.gap < BRISK else GATHERED
        enough = min(self._rows, gathered, max(1, self._broker.in_flight // 2))
        if len(self._backlog) >= enough or self._backlog.payload_bytes >= GATHERED_BYTES:
            return self.retry_at
        return max(self.retry_at, self.delay.due)

    def commit(self) -> None:
        """Commit and acknowledge the buffered groups, oldest first; after a failure they stay buffered."""
        acknowledged = time.monotonic()
        while (group := self._backlog.first) is not None:
            try:
                self._store_group(group)
            except StorageError as problem:
                self._commit_failed(problem)
                return
            self._hold_back(len(group.deliveries))
            acknowledged = time.monotonic()
            self._broker.ack(group.deliveries)
            self._backlog.done()
            lost = {id(label) for label in group.lost}
            for submission in group.submissions:
                submission.stored(sum(id(label) in lost for label in submission.labels))
            self._after_commit(group)
            self._watchdog.beat("ingest")
        self.delay.committed(acknowledged)
        if self.problem is not None:
            self._recovered()

    def _store_group(self, group: CommitGroup) -> None:
        batch = group.batch
        if not group.stored:
            if not (group.tried and batch is not None and self._is_stored(batch)):
                group.tried = True
                self._store.commit(
                    batch, group.updates, group.rejected, group.packets, group.opened, group.joined
                )
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
        pause = self._decoder.admission.pause(messages, self._clock.monotonic())
        if pause <= 0:
            return
        until = time.monotonic() + pause
        with self._turns.apart():
            while not self._stopping and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, STEP_SECONDS))
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
        if batch is not None and not self._windows:
            self._decoder.watch(batch.keys, batch.x)
        self._evict()

    def _evict(self) -> None:
        """What is too old goes even when nothing comes. A disk that refuses is told of by the next commit."""
        now = self._clock.monotonic()
        if now - self._evicted < EVICT_SECONDS:
            return
        self._evicted = now
        with disk_may_refuse(log, "eviction_failed"):
            self._store.evict(self._clock.now())

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
            log.error(
                "commit_failed", problem=line, remedy="edged retries and acknowledges nothing until then"
            )
            self._notices.problem_changed()

    def _recovered(self) -> None:
        self.problem = None
        seconds = round(time.monotonic() - self._failing_since, 1)
        log.info("commits_go_on", after_s=seconds, overflowed=self._overflowed)
        if self._overflowed:
            self._overflowed = False
            self._broker.drop()
        self._notices.problem_changed()

    def start_over(self, deliveries: Sequence[ReceivedMessage], submissions: Sequence[Submission]) -> None:
        """After an error that nobody foresaw: have everything that is here delivered again.

        That is all that is buffered, and `deliveries` and `submissions`, which are not yet. What still comes
        over the old connection is left out, so that it does not overtake. Nobody delivers submissions again:
        they are refused.
        """
        for submission in [*submissions, *self._backlog.submissions]:
            submission.refused(StorageError("ingest failed", remedy="send it again: it may not be stored"))
        newest = deliveries[-1].epoch if deliveries else 0
        self._given_up = max(self._given_up, self._backlog.newest_epoch, newest)
        self._backlog.clear()
        self._broker.drop()
        self.due = self.retry_at = time.monotonic() + LONGEST_RETRY

    def stop(self) -> None:
        """Commit without delay from now on, and acknowledge at once; safe to call from any thread."""
        self._stopping = True


class LabelJoin:
    """Finds the samples of labels that come by themselves, by id, or by key and time.

    `expiry` is how old a sample may be then, in seconds; None for any age. `decoder` records which
    labels were refused.
    """

    def __init__(self, store: SampleLog, clock: Clock, expiry: float | None, decoder: SampleDecoder) -> None:
        self._decoder = decoder
        self._store, self._clock, self._expiry = store, clock, expiry
        self._ages = Ages(clock)

    def join(self, group: CommitGroup) -> list[LabelUpdate]:
        """Commit the labels of a group; those without a sample, or too late, go to its quarantine.

        Raises StorageError when the disk refuses; nothing has changed then.
        """
        if not group.labels:
            return []
        found = self._store.find_many(group.labels)
        updates, lost = [], []
        now = self._clock.now()
        expired = self._expired([offset for offset in found if offset is not None], now)
        for label, offset in zip(group.labels, found, strict=True):
            named = f"(id {label.id!r}, key {label.key!r}, ts {label.ts!r})"
            if offset is None:
                lost.append(Rejected(now, "label", "label_unmatched", b"", f"no sample for label {named}"))
            elif offset in expired:
                lost.append(Rejected(now, "label", "label_expired", b"", f"too late for its sample {named}"))
            else:
                updates.append(LabelUpdate(offset, label.label, label.ts or now, label.source or "http"))
        self._store.commit(None, updates, lost, group.label_packets)
        group.rejected.extend(lost)
        joined = zip(group.labels, found, strict=True)
        group.lost = [label for label, offset in joined if offset is None or offset in expired]
        for _ in updates:
            self._decoder.record(self._decoder.labels, None)
        for item in lost:
            self._decoder.record(self._decoder.labels, item.detail)
        return updates

    def _expired(self, offsets: list[int], now: float) -> set[int]:
        """Samples whose labels may come no longer."""
        if self._expiry is None:
            return set()
        arrived = self._store.arrivals(offsets)
        return {offset for offset, ts in arrived.items() if self._ages.age(ts, now) > self._expiry}
