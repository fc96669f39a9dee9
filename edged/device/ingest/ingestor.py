"""Ingest: MQTT deliveries become samples, which go to serving and, not waiting for that, to the committer.

A batch goes to the serving loop before its commit, so a prediction does not wait for the disk. Where samples
are windows of readings, a reading that completes none is committed, too, as a part of its open window.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edged.clock import Clock
from edged.config import Config
from edged.device.ingest.committer import GroupCommitter
from edged.device.ingest.decoder import SampleDecoder
from edged.device.ingest.joiner import Joiner
from edged.domain.commits.commit_delay import FlushRequests
from edged.domain.commits.commit_group import CommitGroup, Packet, Submission, checksum
from edged.domain.protocols import SampleSink
from edged.domain.stream.forecast import Forecast
from edged.domain.stream.sample import Batch, Reading
from edged.domain.stream.temporal_context import RECENT, TemporalContext
from edged.errors import RefusedError, StorageError
from edged.host.systemd import Watchdog
from edged.host.turns import Turns, TurnThreads
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.storage.samples.log import SampleLog

if TYPE_CHECKING:
    from edged.domain.stream.windowing import Windowing

log = get_logger("edged.ingest")

IDLE_SECONDS = 0.5
GATHER_SECONDS = 0.005  # how long a prediction waits for company while messages keep coming
INBOX_FACTOR = 5  # times what can be unacknowledged: more is at QoS 0, which nothing else holds back
MOST_SUBMITTED = 256  # that wait for the ingest thread
FLUSH_SECONDS = 5.0  # at most, that a caller waits for a commit


class Ingestor:
    """The ingest thread and the inbox that the network thread fills.

    `config`: the stream, how many messages may be unacknowledged, and how many are committed together.
    `store` knows the next offset, and the windows that an earlier process left open. `decoder` tells what
    messages say, of which `joiner` makes readings. `serving` predicts the samples. `committer` makes samples
    and labels durable; from then on the broker need not send them again. `clock` tells when samples arrive.
    `watchdog` is shown that the loop `ingest` works.
    """

    def __init__(
        self,
        config: Config,
        store: SampleLog,
        *,
        decoder: SampleDecoder,
        joiner: Joiner,
        serving: SampleSink,
        committer: GroupCommitter,
        clock: Clock,
        watchdog: Watchdog,
    ) -> None:
        stream = config.stream
        self._config = config.storage
        self._store = store
        self.decoder = decoder
        self.admission = decoder.admission
        self._serving = serving
        self._committer = committer
        self._clock = clock
        self._watchdog = watchdog
        schema = stream.to_schema()
        forecasts = schema.task == "forecast"
        self._forecast = Forecast(stream.forecast_columns, stream.horizon) if forecasts else None
        self._context = TemporalContext.of(schema)
        self._channels = schema.channels
        self.windowing: Windowing | None = None
        if stream.window is not None:
            from edged.domain.stream.windowing import Windowing

            self.windowing = Windowing(stream.window.rules(), stream.width)
        self.joiner = joiner
        self._restored = False
        self._room = INBOX_FACTOR * config.mqtt.constants.receive_maximum + self._config.constants.commit_rows
        self._next_offset = store.next_offset()
        self._inbox: collections.deque[ReceivedMessage] = collections.deque()
        self._submitted: collections.deque[Submission] = collections.deque()
        self._admitted: list[Submission] = []  # those that the committer does not have yet
        self._wake = Turns(TurnThreads("ingest", 1))
        self._flush_requests = FlushRequests()
        self._stopping = False
        self._forgetting = False
        self.received = 0
        self.overrun = 0
        self.idle = IDLE_SECONDS
        """Seconds between two turns without work; infinite where `look` is called regularly."""

    # ---- the network thread's side ---------------------------------------------------------

    def receive(self, delivery: ReceivedMessage) -> None:
        """Take a delivery; little more than an append, for this runs on the network thread.

        At QoS 1 the broker holds back what has no room, at QoS 0 it is counted and dropped.
        """
        if not delivery.mid and len(self._inbox) >= self._room:
            self.overrun += 1
            return
        self._inbox.append(delivery)
        if not self._wake.is_set():
            self._wake.set()

    def submit(self, submission: Submission) -> None:
        """Take readings that come by another way than the broker; from any thread, never waits.

        Raises RefusedError when ingest has stopped or too many submissions wait; StorageError while the disk
        refuses: their sender does not repeat them.
        """
        if self._committer.problem is not None:
            raise StorageError(self._committer.problem)
        if self._stopping:
            raise RefusedError("the daemon is stopping", remedy="send it again later")
        if len(self._submitted) >= MOST_SUBMITTED:
            raise RefusedError(f"{MOST_SUBMITTED} submissions are waiting already", remedy="send it later")
        self._submitted.append(submission)
        self._wake.set()

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Commit now what was delivered so far, without the commit delay. Call from any other thread.

        Returns
        -------
        Whether it is: False while the disk refuses, or when that takes longer than `timeout` seconds. Of a
        flood, those that wait behind a whole commit of others are not in it.
        """
        return not self._wake.alive or self._flush_requests.wait(self._wake.set, timeout)

    def forget(self) -> None:
        """Go on from what is stored of unfinished samples and labels that hold, after some was erased.

        Call from any other thread.
        """
        self._forgetting = True
        self.flush()

    @property
    def waiting(self) -> int:
        """Number of deliveries that are not yet acknowledged."""
        return len(self._inbox) + self._committer.waiting

    # ---- the ingest thread -----------------------------------------------------------------

    def start(self, threads: TurnThreads | None = None) -> None:
        """Start the ingest loop, on a thread of its own or on `threads` that several streams share."""
        if threads is not None:
            self._wake, self.idle = Turns(threads), float("inf")
        self._committer.start(self._wake)
        self._wake.start(self)

    def stop(self, timeout: float = 5.0) -> None:
        """Commit what is here, then end; what cannot be committed is left to the broker."""
        self._stopping = True
        self._committer.stop()
        self._wake.set()
        self._wake.join(timeout)

    def turn(self, *, woken: bool) -> bool:
        """See `Stage`: what came since the last turn is predicted, and committed once it is time."""
        over = self._stopping and not self._inbox
        self._turn(woken=woken or over)
        if over:
            self._flush_requests.close()
            return False
        self._watchdog.beat("ingest")
        if self._stopping:
            self._wake.set()
        return True

    def _turn(self, *, woken: bool) -> None:
        deliveries: list[ReceivedMessage] = []
        if woken:
            self._gather()
        self._wake.clear()
        asked, flushed = self._flush_requests.start_turn(), False
        try:
            if self._inbox:
                deliveries = self._pop_deliveries()
                self.ingest_messages(deliveries)
            self._ingest_submitted()
            self._ingest_due()
            # Messages of other streams are not to wait for this commit: that is the work of a turn by itself.
            later = self._wake.shared and woken
            flushed = self._committer.commit_due(at_once=bool(asked), later=later)
            if flushed and self._forgetting:
                self._restore_next()
        except Exception:
            log.exception("ingest_failed", messages=self.waiting + len(deliveries))
            self._committer.start_over(deliveries, self._admitted)
            self._admitted = []
            self._restore_next()
        self._flush_requests.finish_turn(asked, flushed=flushed)

    def _restore_next(self) -> None:
        """What is here is not what is stored: go on from that with the next message."""
        self._restored = self._forgetting = False
        self.joiner.forget()

    def wake(self) -> None:
        """Take a turn; from any thread."""
        self._wake.set()

    def patience(self) -> float | None:
        """See `Stage`: until a commit is due, or a sample that comes by the clock."""
        patience = min(self.idle, max(0.0, self._committer.due - time.monotonic()), self.joiner.due_in())
        return None if patience == float("inf") else patience

    def _gather(self) -> None:
        """Let a batch gather more messages while they keep coming, for a moment."""
        if self._stopping or self._config.commit_delay == 0 or self._committer.delay.gap > GATHER_SECONDS:
            return
        if self._wake.crowded:
            return  # company comes while the others have their turns
        deadline = time.monotonic() + GATHER_SECONDS
        before, most = -1, self._config.constants.commit_rows
        while before < len(self._inbox) < most and time.monotonic() < deadline:
            before = len(self._inbox)
            time.sleep(0.001)

    def _pop_deliveries(self) -> list[ReceivedMessage]:
        count = min(len(self._inbox), self._config.constants.commit_rows)
        deliveries = [self._inbox.popleft() for _ in range(count)]
        if self._inbox:
            self._wake.set()
        return deliveries

    def _ingest_submitted(self) -> None:
        """What came by another way becomes samples like the rest; the broker has no copy of it."""
        if not self._submitted:
            return
        self._restore()
        group, readings, received = CommitGroup(), list[Reading](), list[float]()
        self._admitted = group.submissions
        while self._submitted and len(readings) < self._config.constants.commit_rows:
            submission = self._submitted.popleft()
            self._admitted.append(submission)
            if not self.decoder.admit_all(submission.readings):
                self._admitted.pop().refused(
                    RefusedError("this key exceeds its rate limit", where="stream.key_rate")
                )
                continue
            known = len(group.labels)
            made = self.joiner.join(submission.readings, submission.received, group)
            submission.labels.extend(group.labels[known:])
            readings += made
            received += [submission.received] * len(made)
        if self._submitted:
            self._wake.set()
        group.joined = self.joiner.changes()
        if group.submissions:
            self.received += len(readings)
            received = self._put(group, readings, received, [None] * len(readings))
            self._hand_on(group, np.asarray(received, np.float64))

    def ingest_messages(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Decode messages, and hand them on for prediction and for the next commit."""
        self.received += len(deliveries)
        self._restore()
        group, received = self._decode_all(deliveries)
        if group.deliveries:
            self._hand_on(group, received)

    def _restore(self) -> None:
        """Go on from what is stored, at the start and after an error that nobody foresaw."""
        if not self._restored:
            if self.windowing is not None:
                self.windowing.restore(self._store.open_windows())
            if self._context is not None:
                self._context.restore(*self._store.newest_by_key(RECENT))
            self._restored = True
        self.joiner.restore(self._store)

    def _ingest_due(self) -> None:
        """Samples by the clock, whose time has come without a message."""
        if not self.joiner.needed:
            return
        self._restore()
        readings = self.joiner.tick()
        if readings:
            group = CommitGroup(joined=self.joiner.changes())
            self._put(group, readings, [time.monotonic()] * len(readings), [None] * len(readings))
            self._hand_on(group, np.full(len(group.batch or ()), time.monotonic()))

    def _hand_on(self, group: CommitGroup, received: NDArray[np.float64]) -> None:
        """Let the committer have a group and serving its samples, which arrived at `received` `(n,)`."""
        batch = group.batch
        if batch is not None and self._forecast is not None:
            group.updates = self._forecast.update(batch)
        self._committer.add(group)
        self._admitted = []
        if batch is not None:
            self._serving.submit(batch, received)

    # ---- from messages to a batch ----------------------------------------------------------

    def _decode_all(self, deliveries: Sequence[ReceivedMessage]) -> tuple[CommitGroup, NDArray[np.float64]]:
        group = CommitGroup()
        readings: list[Reading] = []
        received: list[float] = []
        packets: list[Packet | None] = []
        for delivery in deliveries:
            packet = (delivery.mid, checksum(delivery.topic, delivery.payload))
            if not self._committer.accept(delivery, packet, group):
                continue
            found = self.decoder.decode(delivery, packet, group)
            if found and (self.joiner.needed or not isinstance(found, Reading)):
                decoded = [found] if isinstance(found, Reading) else found
                made = self.joiner.join(decoded, delivery.received, group)
                group.packets += [packet] if packet[0] else []
                readings += made
                received += [delivery.received] * len(made)
                packets += [None] * len(made)
            elif isinstance(found, Reading):
                readings.append(found)
                received.append(delivery.received)
                packets.append(packet)
        group.joined = self.joiner.changes()
        received = self._put(group, readings, received, packets)
        return group, np.asarray(received, np.float64)

    def _put(
        self,
        group: CommitGroup,
        readings: list[Reading],
        received: list[float],
        packets: list[Packet | None],
    ) -> list[float]:
        """Put readings, or the windows that they complete, into a group; return when those were received."""
        if not readings:
            return []
        now = self._clock.now()
        if self.windowing is not None:
            group.packets += [packet for packet in packets if packet is not None and packet[0]]
            readings, ts, received = self.decoder.cut(self.windowing, readings, received, now)
            packets = [None] * len(readings)
            group.opened = self.windowing.changes()
        else:
            ts = self.admission.event_times([reading.ts for reading in readings], now)
        if readings:
            batch = Batch.of(readings, packets, first=self._next_offset, now=now, ts=ts)
            batch = replace(batch, aside=self.decoder.implausible(batch, self._channels))
            if self._context is not None:
                batch = replace(batch, x=self._context.extend(batch.keys, batch.x))
            group.batches.append(batch)
            self._next_offset += len(readings)
        return received
