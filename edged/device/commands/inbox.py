"""Where commands arrive: repeated deliveries and floods are answered here, all others wait their turn.

A thread hands the commands that wait to the dispatcher, one after the other.
"""

from __future__ import annotations

import collections
import threading
import zlib

from edged.clock import Clock
from edged.device.commands.answers import CommandAnswers, CommandDelivery, HttpCommand, command_of
from edged.device.commands.dispatcher import CommandDispatcher
from edged.domain.commands.signatures import Authority
from edged.domain.commands.tasks import RunningCommands
from edged.domain.token_bucket import TokenBucket
from edged.errors import RefusedError

RATE, BURST = 50.0, 200.0  # commands per second, and at once, in each queue
MAX_WAITING = 100
REFUSALS = 10.0  # rejections per second that are answered; the others are only counted


class CommandQueue:
    """Commands that wait, at most `MAX_WAITING`, and the limits on how many more may come."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._bucket = TokenBucket(rate, burst)
        self.refusals = TokenBucket(REFUSALS, REFUSALS)
        self.waiting: collections.deque[CommandDelivery] = collections.deque()

    def put(self, delivery: CommandDelivery, now: float) -> str:
        """Queue a command; return the reason if it is rejected."""
        if not self._bucket.try_acquire(now):
            return f"more than {self._rate:g} commands a second"
        if len(self.waiting) >= MAX_WAITING:
            return f"{MAX_WAITING} commands are waiting already"
        self.waiting.append(delivery)
        return ""


class CommandInbox:
    """Received commands in two queues, which take turns: signed ones and those over HTTP, and all others.

    So a flood of unsigned commands delays no signed one. `answers` answers and acknowledges commands that are
    not queued. `authority` checks signatures; without it all commands are unsigned. Each queue takes `rate`
    commands per second, and `burst` at once.
    """

    def __init__(
        self,
        clock: Clock,
        answers: CommandAnswers,
        running: RunningCommands,
        authority: Authority | None = None,
        *,
        rate: float = RATE,
        burst: float = BURST,
    ) -> None:
        self._clock = clock
        self._answers = answers
        self._running = running
        self._authority = authority
        self._queues = [CommandQueue(rate, burst), CommandQueue(rate, burst)]  # the next turn's first
        self._trusted, self._others = self._queues
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._dispatcher: CommandDispatcher | None = None
        self._seen: collections.deque[tuple[int, int]] = collections.deque(maxlen=2 * MAX_WAITING)

    def start(self, dispatcher: CommandDispatcher) -> None:
        """Have `dispatcher` execute one command after the other, on a thread of its own."""
        with self._changed:
            self._dispatcher = dispatcher
            if any(queue.waiting for queue in self._queues):
                self._run()

    def _run(self) -> None:
        """Start the thread with the first command: of a hundred streams few get any."""
        if self._thread is None and self._dispatcher is not None and not self._stopping:
            self._thread = threading.Thread(
                target=self._loop, args=(self._dispatcher,), name="control", daemon=True
            )
            self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop after the commands that wait already."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)

    def receive(self, delivery: CommandDelivery) -> None:
        """Queue a command for the dispatcher; call it on the thread that received the command.

        A command that was queued before its connection broke is acknowledged only. Commands that exceed the
        rate limit or find the queue full are rejected.
        """
        self._running.count("received")
        if delivery.mid and self._seen_before(delivery):
            self._running.count("redelivered")
            self._answers.acknowledge(delivery)
            return
        if delivery.retain and not delivery.payload:
            self._running.count("cleared")  # the retained command on this topic was deleted
            self._answers.acknowledge(delivery)
            return
        now = self._clock.monotonic()
        with self._changed:
            queue = self._trusted if self._is_trusted(delivery) else self._others
            reason = queue.put(delivery, now)
            answered = bool(reason) and queue.refusals.try_acquire(now)
            self._changed.notify()
            self._run()
        if reason:
            self._reject(delivery, reason, answered=answered)

    def _seen_before(self, delivery: CommandDelivery) -> bool:
        seen = (delivery.mid, zlib.crc32(delivery.payload, zlib.crc32(delivery.topic.encode())))
        if delivery.dup and seen in self._seen:
            return True
        self._seen.append(seen)
        return False

    def _is_trusted(self, delivery: CommandDelivery) -> bool:
        if isinstance(delivery, HttpCommand):
            return True
        return self._authority is not None and self._authority.is_fresh(
            command_of(delivery), delivery.payload
        )

    def _reject(self, delivery: CommandDelivery, reason: str, *, answered: bool) -> None:
        """Answer a command that is too much, as far as answers are not too many; count it."""
        self._running.count("limited")
        if answered:
            self._answers.reject(delivery, RefusedError(reason, remedy="send it later"))
        else:
            self._running.count("unanswered")
            self._answers.acknowledge(delivery)

    def _loop(self, dispatcher: CommandDispatcher) -> None:
        while (delivery := self._next()) is not None:
            dispatcher.execute(delivery)

    def _next(self) -> CommandDelivery | None:
        """Wait for a command; None after the last one."""
        with self._changed:
            while True:
                for queue in self._queues:
                    if queue.waiting:
                        self._queues.remove(queue)
                        self._queues.append(queue)
                        return queue.waiting.popleft()
                if self._stopping:
                    return None
                self._changed.wait()
