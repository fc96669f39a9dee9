"""Forwarding: messages that must arrive are handed to the connection, or wait on the disk until they can be.

A message goes straight to the connection while that takes it. What the broker has not acknowledged
within a second, or when the connection is lost, is written to the outbox; what is there goes out
later, at a limited rate, and leaves the disk after the broker's acknowledgement.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from itertools import count
from queue import SimpleQueue

from edged.clock import Clock
from edged.domain.commands.delivery_policy import MessageKind, OutboxMessage
from edged.domain.token_bucket import TokenBucket
from edged.errors import CorruptError, StorageError
from edged.host.turns import Turns, TurnThreads
from edged.logs import get_logger
from edged.mqtt.client.session import Session
from edged.storage.outbox.queue import Outbox
from edged.storage.outbox.tables import Key, OutboxBacklog

LIVE = 64  # messages in the hands of the connection
LATE = 8  # of those, messages from the disk: what a live one may find before it
LATE_BYTES = 128 * 1024  # taken from the disk at a time
GROUP_SECONDS = 0.1  # how long a commit waits for company
HOLD_SECONDS = 1.0  # how long an acknowledgement may take before the message is written down
REMOVE_SECONDS = 1.0  # acknowledged messages leave the disk together, this often
REMOVE_COUNT = 500
MEMORY_BYTES = 1024**2  # of messages that cannot be written
RETRY_SECONDS = 5.0  # after the disk has refused
TIDY_SECONDS = 5.0
ERASE_SECONDS = 60.0
BURST_SECONDS = 0.1  # of the rate, at most at once

log = get_logger("edged.forward")


@dataclass(slots=True)
class _Handed:
    """A message in the hands of the connection."""

    parcel: OutboxMessage
    since: float
    key: Key | None = None  # where it is on the disk, too
    written: bool = False  # or given up there
    late: bool = False


class StoreAndForward:
    """Sends each message at least once; nothing here waits for the disk or the network but its own thread.

    `outbox` is None if it could not be opened: then messages wait in memory, bounded. `rate` is the number of
    messages per second that are sent from the disk.
    """

    def __init__(self, outbox: Outbox | None, *, session: Session, rate: float, clock: Clock) -> None:
        self._outbox = outbox
        self._session = session
        self._clock = clock
        self._pace = TokenBucket(rate, max(1.0, rate * BURST_SECONDS))
        self._lock = threading.Lock()
        self._fresh: dict[MessageKind, deque[tuple[OutboxMessage, float]]] = {
            kind: deque() for kind in MessageKind
        }
        self._fresh_bytes = 0
        self._writing: deque[tuple[OutboxMessage, float]] = deque()
        self._handed: dict[int, _Handed] = {}
        self._numbers = count()
        self._late = 0
        self._arrived: dict[Key, int] = {}  # with their sizes; still on the disk
        self._lost = dict.fromkeys(MessageKind, 0)
        self._seen = OutboxBacklog(0, 0, 0)  # on the disk, at the moment that the rest here speaks of
        self._look()
        self._removed_at = self._tidied_at = self._refused_at = float("-inf")
        self._refused = False
        self.idle: float | None = HOLD_SECONDS
        """Seconds between two turns while nothing waits; None where `look` is called regularly."""
        self._erasures: SimpleQueue[Future[int]] = SimpleQueue()
        self._wake = Turns(TurnThreads("forward", 1))
        self._ending, self._held_until = False, 0.0

    # ---- what other threads call ---------------------------------------------------------------

    def start(self, threads: TurnThreads | None = None) -> None:
        """Begin to write down and to send what waits, on `threads` if several streams share them."""
        if threads is not None:
            self._wake, self.idle = Turns(threads), None
        self._wake.start(self)

    def look(self) -> None:
        """Take a turn if anything waits; from any thread."""
        if self._fresh_bytes or self._handed or self._writing or self._arrived or self._seen.pending:
            self._wake.set()

    def wake(self) -> None:
        """The connection was made or lost."""
        self._wake.set()

    def deliver(self, kind: MessageKind, topic: str, payload: bytes) -> None:
        """Take a message over; neither blocks nor raises."""
        parcel = OutboxMessage(kind, topic, payload)
        with self._lock:
            self._fresh[kind].append((parcel, self._clock.monotonic()))
            self._fresh_bytes += parcel.size
            self._send_fresh()
            waits = self._fresh_bytes > 0
            if waits:
                self._bound_memory()
        if waits:
            self._wake.set()

    def store(self, parcels: Sequence[OutboxMessage]) -> None:
        """Write bulk down at once, to be sent from the disk; the caller waits for the disk.

        What the disk does not take, or is too much for it, goes to the connection right away or,
        without one, is given up.
        """
        outbox, rest = self._outbox, deque(parcels)
        try:
            while rest and outbox is not None and outbox.accepts(parcels):
                for _ in outbox.put([(parcel, False) for parcel in rest]):
                    rest.popleft()
        except StorageError as problem:
            self._refusal(problem)
        with self._lock:
            self._look()
        if rest:
            self._send_directly(rest)
        self._wake.set()

    def _send_directly(self, parcels: Iterable[OutboxMessage]) -> None:
        for parcel in parcels:
            sent = self._session.connected and self._session.publish(parcel.topic, parcel.payload, qos=1)
            with self._lock:
                self._lost[parcel.kind] += not sent

    def outstanding(self) -> OutboxBacklog:
        """What is still to be delivered; for the status."""
        with self._lock:
            memory = [parcel for queue in (*self._fresh.values(), self._writing) for parcel, _ in queue]
            memory += [handed.parcel for handed in self._handed.values() if handed.key is None]
            pending, size, lost = vars(self._seen).values()
            pending += len(memory) - len(self._arrived)
            size += sum(parcel.size for parcel in memory) - sum(self._arrived.values())
            return OutboxBacklog(pending, size, lost + sum(self._lost.values()))

    def stop(self, timeout: float = 10.0) -> None:
        """Write down what is not delivered; call it after the connection was closed."""
        self._ending = True
        self._wake.set()
        self._wake.join(timeout)
        if self._outbox is None or self._wake.alive:
            return
        try:
            self._write_down(everything=True)
            self._remove()
        except StorageError as problem:
            self._refusal(problem)
        self._outbox.close()

    def erase(self) -> int:
        """Erase what waits, in memory and in the bytes of the file; how many messages.

        Raises StorageError when the disk refuses, or it takes too long.
        """
        done: Future[int] = Future()
        self._erasures.put(done)
        self._wake.set()
        try:
            return done.result(ERASE_SECONDS)
        except FutureTimeoutError:
            raise StorageError("the outbox was not erased in time", remedy="wipe again") from None

    def _erase(self) -> None:
        """Carry out what `erase` has asked for."""
        while not self._erasures.empty():
            done, waiting = self._erasures.get(), self.outstanding().pending
            with self._lock:
                for queue in self._fresh.values():
                    queue.clear()
                self._fresh_bytes = 0
                self._arrived.clear()
                for handed in self._handed.values():
                    handed.key, handed.written = None, True  # the connection has them; none is written again
            try:
                if self._outbox is not None:
                    self._outbox.erase()
                with self._lock:
                    self._look()
            except StorageError as problem:
                done.set_exception(problem)
                raise
            done.set_result(waiting)

    def _look(self) -> None:
        """Take over the outbox's counts, in one step with what they imply here."""
        if self._outbox is not None:
            self._seen = self._outbox.waiting

    # ---- handing over (any thread, under the lock) ---------------------------------------------

    def _send_fresh(self) -> None:
        if not self._session.connected:
            return
        for queue in self._fresh.values():
            while queue and len(self._handed) < LIVE:
                parcel, since = queue[0]
                if not self._hand_over(_Handed(parcel, since), parcel.payload):
                    return
                queue.popleft()
                self._fresh_bytes -= parcel.size

    def _hand_over(self, handed: _Handed, payload: bytes) -> bool:
        number = next(self._numbers)
        self._handed[number] = handed
        if self._session.publish(handed.parcel.topic, payload, qos=1, on_done=partial(self._done, number)):
            return True
        del self._handed[number]
        return False

    def _done(self, number: int) -> None:
        """The broker has a message (network thread)."""
        with self._lock:
            handed = self._handed.pop(number, None)
            if handed is None:
                return
            if handed.key is not None:
                self._arrived[handed.key] = handed.parcel.size
            self._late -= handed.late
            self._send_fresh()
        if handed.late:
            self._wake.set()

    def _bound_memory(self) -> None:
        """Beyond the bound the oldest of the lowest priority are given up."""
        for kind, queue in reversed(self._fresh.items()):
            while queue and self._fresh_bytes > MEMORY_BYTES:
                self._fresh_bytes -= queue.popleft()[0].size
                self._lost[kind] += 1

    # ---- the thread ----------------------------------------------------------------------------

    def turn(self, *, woken: bool) -> bool:  # noqa: ARG002  what waits tells more
        """See `Stage`: send, write down and remove what is due."""
        self._wake.clear()
        if self._ending or self._clock.monotonic() < self._held_until:
            return not self._ending
        try:
            self._step()
        except CorruptError as problem:
            self._start_over(problem)
        except StorageError as problem:
            self._refusal(problem)
        except Exception:
            log.exception("forwarding_failed")
            self._held_until = self._clock.monotonic() + HOLD_SECONDS
        return True

    def _step(self) -> None:
        now = self._clock.monotonic()
        self._erase()
        with self._lock:
            self._send_fresh()
        if now - self._refused_at >= RETRY_SECONDS:
            self._write_down()
            if now - self._removed_at >= REMOVE_SECONDS or len(self._arrived) >= REMOVE_COUNT:
                self._remove()
                self._removed_at = now
            if now - self._tidied_at >= TIDY_SECONDS and self._outbox is not None:
                self._tidied_at = now
                if given_up := self._outbox.tidy():
                    log.warning("outbox_gave_up", messages=given_up)
                    with self._lock:
                        self._look()
        self._send_late()

    def patience(self) -> float | None:
        """See `Stage`: until something may be due without being woken."""
        now = self._clock.monotonic()
        if now < self._held_until:
            return self._held_until - now
        with self._lock:
            fresh, room = self._fresh_bytes > 0, self._late < LATE
        if fresh:
            return GROUP_SECONDS / 2 if now - self._refused_at >= RETRY_SECONDS else HOLD_SECONDS
        if room and self._session.connected and self._outbox is not None and self._outbox.takeable:
            return self._pace.wait(now)
        return self.idle

    def _refusal(self, problem: StorageError) -> None:
        """The disk does not take it: messages wait in memory for the next attempt."""
        self._refused_at = self._clock.monotonic()
        if not self._refused:
            log.error("outbox_refused", problem=problem.line())
        self._refused = True

    def _start_over(self, problem: CorruptError) -> None:
        outbox = self._outbox
        if outbox is None:
            return
        try:
            outbox.start_over(problem)
            with self._lock:
                self._arrived.clear()
                for handed in self._handed.values():
                    handed.key, handed.written = None, False
                self._look()
        except StorageError as failure:
            self._refusal(failure)

    # ---- writing down --------------------------------------------------------------------------

    def _write_down(self, *, everything: bool = False) -> None:
        """Commit what the connection does not take, or the broker does not acknowledge, in time."""
        outbox = self._outbox
        if outbox is None:
            return
        with self._lock:
            self._writing = self._pop_fresh(everything)
            slow = self._slow(everything)
        try:
            self._put_slow(outbox, slow)
            self._put_fresh(outbox)
            self._count_lost(outbox)
        finally:
            with self._lock:
                while self._writing:
                    parcel, since = self._writing.pop()
                    self._fresh[parcel.kind].appendleft((parcel, since))
                    self._fresh_bytes += parcel.size
                self._bound_memory()

    def _pop_fresh(self, everything: bool) -> deque[tuple[OutboxMessage, float]]:
        """Remove and return what waits in memory, by priority; nothing before it is time to commit it."""
        oldest = min((queue[0][1] for queue in self._fresh.values() if queue), default=None)
        if oldest is None:
            return deque()
        waited = self._clock.monotonic() - oldest
        patience = HOLD_SECONDS if self._session.connected else GROUP_SECONDS
        if not everything and waited < patience and self._fresh_bytes < MEMORY_BYTES // 2:
            return deque()
        fresh = deque(entry for queue in self._fresh.values() for entry in queue)
        for queue in self._fresh.values():
            queue.clear()
        self._fresh_bytes = 0
        return fresh

    def _slow(self, everything: bool) -> dict[int, _Handed]:
        """What the connection has had for too long, and is not on the disk."""
        before = self._clock.monotonic() - HOLD_SECONDS
        everything = everything or not self._session.connected
        return {
            number: handed
            for number, handed in self._handed.items()
            if not handed.written and (everything or handed.since < before)
        }

    def _put_fresh(self, outbox: Outbox) -> None:
        while self._writing:
            keys = outbox.put([(parcel, False) for parcel, _ in self._writing])
            with self._lock:
                for _ in keys:
                    self._writing.popleft()
                self._look()
            self._refused = False

    def _put_slow(self, outbox: Outbox, slow: dict[int, _Handed]) -> None:
        rest = deque(slow.items())
        while rest:
            keys = outbox.put([(handed.parcel, True) for _, handed in rest])
            with self._lock:
                for key in keys:
                    number, handed = rest.popleft()
                    handed.key, handed.written = key, True
                    if key is not None and number not in self._handed:
                        self._arrived[key] = handed.parcel.size  # acknowledged while it was being written
                self._look()
            self._refused = False

    def _count_lost(self, outbox: Outbox) -> None:
        with self._lock:
            lost = {kind: number for kind, number in self._lost.items() if number}
        for kind, number in lost.items():
            outbox.lost(kind, number)
        with self._lock:
            for kind, number in lost.items():
                self._lost[kind] -= number
            self._look()

    # ---- sending what is on the disk -----------------------------------------------------------

    def _remove(self) -> None:
        """Take what has arrived off the disk, in one go."""
        with self._lock:
            arrived = dict(self._arrived)
        if self._outbox is None or not arrived:
            return
        self._outbox.remove(list(arrived))
        with self._lock:
            for key in arrived:
                self._arrived.pop(key, None)
            self._look()

    def _send_late(self) -> None:
        """Hand over what waits on the disk, as far as the rate and live messages allow."""
        outbox = self._outbox
        if outbox is None or not self._session.connected:
            return
        with self._lock:
            room = 0 if self._fresh_bytes else LATE - self._late
        allowed = min(room, self._pace.allowed(self._clock.monotonic()))
        if allowed < 1:
            return
        reserved = outbox.reserve(allowed, LATE_BYTES)
        for position, (key, parcel) in enumerate(reserved):
            with self._lock:
                handed = _Handed(parcel, self._clock.monotonic(), key, written=True, late=True)
                sent = self._hand_over(handed, parcel.late_payload)
                self._late += sent
            if not sent:
                for unsent, _ in reserved[position:]:
                    outbox.release(unsent)
                return
            self._pace.spend(1)
