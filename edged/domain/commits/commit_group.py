"""Messages between the first look at them and their acknowledgement: one commit's, and all that are held."""

from __future__ import annotations

import collections
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edged.domain.stream.sample import Batch, HeldChange, HeldLabel, LabelReading, LabelUpdate, Rejected, Seen
from edged.domain.stream.windowing import OpenWindowChanges
from edged.errors import EdgedError

Packet = tuple[int, int]


@dataclass
class JoinChanges:
    """What has changed: to be stored with what changed it. Storing the same twice is the same as once.

    `states` of keys as numbers, None for a key that is forgotten; `held` labels, None for one that ended;
    `now` when, in Unix seconds; `said` what commands have changed of `held`.
    """

    states: dict[str, array[float] | None] = field(default_factory=dict)
    held: dict[str, HeldLabel | None] = field(default_factory=dict)
    now: float = 0.0
    said: list[HeldChange] = field(default_factory=list)

    def absorb(self, later: JoinChanges) -> None:
        """Apply the changes of a later block."""
        self.states |= later.states
        self.held |= later.held
        self.now = later.now
        self.said += later.said


@dataclass
class CommitGroup:
    """Messages that become durable together and are acknowledged afterwards.

    `deliveries` in the order they came; `batches` the samples among them; `labels` those that came by
    themselves, with `label_packets`, and `lost` those of them that found no sample; `updates` labels for
    samples that are known; `rejected` what goes to the quarantine; `opened` what changes about open windows
    and `joined` about the values that samples are joined from, with the `packets` of all their messages;
    `submissions` whoever waits for samples that came by another way.
    `tried` tells that its commit has begun; `stored` that all but `labels` is durable.
    """

    deliveries: list[Any] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    updates: list[LabelUpdate] = field(default_factory=list)
    labels: list[LabelReading] = field(default_factory=list)
    label_packets: list[Packet] = field(default_factory=list)
    lost: list[LabelReading] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    opened: OpenWindowChanges | None = None
    joined: JoinChanges | None = None
    submissions: list[Submission] = field(default_factory=list)
    tried: bool = False
    stored: bool = False

    @property
    def batch(self) -> Batch | None:
        """All samples, put together once they are asked for: not again with each message that comes."""
        if len(self.batches) > 1:
            self.batches = [Batch.joined(self.batches)]
        return self.batches[0] if self.batches else None

    def absorb(self, later: CommitGroup) -> None:
        """Take in a group that came later, so that one commit does for both."""
        self.batches += later.batches
        self.deliveries += later.deliveries
        self.updates += later.updates
        self.labels += later.labels
        self.label_packets += later.label_packets
        self.rejected += later.rejected
        self.packets += later.packets
        self.submissions += later.submissions
        if self.opened is None:
            self.opened = later.opened
        elif later.opened is not None:
            self.opened.absorb(later.opened)
        if self.joined is None:
            self.joined = later.joined
        elif later.joined is not None:
            self.joined.absorb(later.joined)


class CommitBacklog:
    """The groups that are not yet durable, oldest first: so many messages and bytes of payloads at most.

    `rows` is the size of one group in messages: a later group joins the last one up to there, so that what
    has gathered in small pieces takes few commits.
    """

    def __init__(self, messages: int, payload_bytes: int, rows: int) -> None:
        self._limit = messages
        self._limit_bytes = payload_bytes
        self._rows = rows
        self._groups: collections.deque[CommitGroup] = collections.deque()
        self._places: dict[Packet, Any] = {}
        self._bytes = 0
        self.payload_bytes = 0
        """How much the payloads of all that is held are together."""

    def __len__(self) -> int:
        return sum(len(group.deliveries) for group in self._groups)

    @property
    def first(self) -> CommitGroup | None:
        """The group to commit next."""
        return self._groups[0] if self._groups else None

    @property
    def awaited(self) -> bool:
        """Whether somebody waits for an answer that says that something of it is durable."""
        return any(group.submissions for group in self._groups)

    @property
    def submissions(self) -> list[Submission]:
        """All whose samples are not durable yet."""
        return [submission for group in self._groups for submission in group.submissions]

    @property
    def newest_epoch(self) -> int:
        """The connection that the newest messages came over; 0 when nothing is held."""
        return max((d.epoch for group in self._groups for d in group.deliveries), default=0)

    def add(self, group: CommitGroup) -> None:
        """Hold one more group."""
        self.payload_bytes += sum(len(delivery.payload) for delivery in group.deliveries)
        last = self._groups[-1] if self._groups else None
        if last is None or last.tried or len(last.deliveries) >= self._rows:
            self._groups.append(group)
        else:
            last.absorb(group)

    def done(self) -> None:
        """The first group is durable."""
        gone = self._groups.popleft()
        self.payload_bytes -= sum(len(delivery.payload) for delivery in gone.deliveries)
        if not self._groups:
            self.clear()

    def clear(self) -> None:
        """Drop all buffered groups and their counts."""
        self._groups.clear()
        self._places.clear()
        self._bytes = self.payload_bytes = 0

    def has_room(self, delivery: Any, beside: int) -> bool:
        """Whether a delivery can be held with `beside` others that are about to be."""
        if not self._groups:
            return True
        self._bytes += len(delivery.payload)
        return len(self) + beside < self._limit and self._bytes <= self._limit_bytes

    def record(self, packet: Packet, delivery: Any) -> None:
        """Record a delivery to recognise its repetition. QoS 0 has no packet id and no repetition."""
        if packet[0]:
            self._places[packet] = delivery

    def renew(self, packet: Packet, epoch: int) -> bool:
        """A repetition came over a new connection: the one held is acknowledged there. False without one."""
        first = self._places.get(packet)
        if first is None:
            return False
        first.epoch = epoch
        return True


@dataclass(eq=False, frozen=True)
class Submission:
    """Readings, or what messages say, that are taken together or not at all.

    `received` is monotonic seconds. The ingest thread calls `stored` once they are on the disk, with the
    number of `labels` that have no sample; or `refused`. After an unexpected error they may be on the disk
    though they were refused.
    """

    readings: Sequence[Seen]
    received: float
    stored: Callable[[int], None]
    refused: Callable[[EdgedError], None]
    labels: list[LabelReading] = field(default_factory=list)  # those that look for their samples


def checksum(topic: str, payload: bytes) -> int:
    """CRC-32 of a message's topic and payload."""
    return zlib.crc32(payload, zlib.crc32(topic.encode()))


class Redelivery:
    """Recognises messages that were stored but whose acknowledgement never reached the broker.

    A redelivery carries the DUP flag, the same packet id and the same content as one of the newest
    `window` stored messages: more cannot be unacknowledged at once. `recent` are those of the newest
    messages, oldest first.

    >>> known = Redelivery([(7, 1234)], window=100)
    >>> known.seen((7, 1234)), known.seen((7, 99))
    (True, False)
    """

    def __init__(self, recent: Sequence[Packet], window: int) -> None:
        self._mids = np.zeros(window, np.uint16)  # 0, which is no message's, where there is none yet
        self._checksums = np.zeros(window, np.uint32)
        self._count = 0
        self._window = window
        self.stored(recent)

    def seen(self, packet: Packet) -> bool:
        """Whether a message with the DUP flag has been stored already."""
        mid, content = packet
        places = np.flatnonzero(self._mids == mid)
        if not len(places):
            return False
        newest = places[((self._count - 1 - places) % self._window).argmin()]
        return bool(self._checksums[newest] == content)

    def stored(self, packets: Sequence[Packet | None]) -> None:
        """These are durable now, oldest first."""
        known = [packet for packet in packets if packet is not None and packet[0]]
        if not known:
            return
        self._count += max(0, len(known) - self._window)
        mids, checksums = np.array(known[-self._window :], np.int64).T
        places = (self._count + np.arange(len(mids))) % self._window
        self._mids[places], self._checksums[places] = mids, checksums
        self._count += len(mids)
