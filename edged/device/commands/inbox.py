"""Where commands arrive: repeated deliveries and floods are answered here, all others wait their turn.

A thread hands the commands that wait to the dispatcher, one after the other.
"""

from __future__ import annotations

import collections
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edged.device.commands.answers import LocalCommand, command_of
from edged.domain.commands.rules import SharedBucket, TokenBucket
from edged.errors import RefusedError

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.config import CommandsConfig
    from edged.device.commands.answers import CommandAnswers, CommandDelivery
    from edged.device.commands.dispatcher import CommandDispatcher
    from edged.domain.commands.running import RunningCommands
    from edged.domain.commands.signatures import Authority

MAX_WAITING = 100
REFUSALS = 10.0  # rejections per second that are answered; the others are only counted

Source = Path | Literal["http", "unsigned"]
"""Who sends commands, as far as that can be proven: the holder of a key, a program over HTTP, or anybody."""


class Lane:
    """The commands of one source: those that wait, at most `MAX_WAITING`, and how many more may come."""

    def __init__(self, config: CommandsConfig) -> None:
        self._rate = config.rate
        self._bucket = SharedBucket(config.rate, config.burst)
        self.refusals = TokenBucket(REFUSALS, REFUSALS)
        self.waiting: collections.deque[CommandDelivery] = collections.deque()

    def put(self, delivery: CommandDelivery, now: float) -> str:
        """Queue a command; return the reason if it is rejected."""
        # What a requester names beside its command: an answer topic of its own, or else the command.
        if not self._bucket.try_acquire(delivery.response_topic or delivery.topic, now):
            return f"more than {self._rate:g} commands a second"
        if len(self.waiting) >= MAX_WAITING:
            return f"{MAX_WAITING} commands are waiting already"
        self.waiting.append(delivery)
        return ""


class CommandInbox:
    """Queues of received commands, one for each source, of which each has its turn.

    `config` has the rate limit; `answers` answers and acknowledges commands that are not queued. `authority`
    tells by their signatures whose commands they are; without it all are unsigned.
    """

    def __init__(
        self,
        config: CommandsConfig,
        clock: Clock,
        answers: CommandAnswers,
        running: RunningCommands,
        authority: Authority | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._answers = answers
        self._running = running
        self._authority = authority
        self._lanes: dict[Source, Lane] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._dispatcher: CommandDispatcher | None = None
        self._seen: collections.deque[tuple[int, int]] = collections.deque(maxlen=2 * MAX_WAITING)

    def start(self, dispatcher: CommandDispatcher) -> None:
        """Have `dispatcher` execute one command after the other, on a thread of its own."""
        with self._changed:
            self._dispatcher = dispatcher
            if any(lane.waiting for lane in self._lanes.values()):
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
            lane = self._lanes.setdefault(self._source(delivery), Lane(self._config))
            reason = lane.put(delivery, now)
            answered = bool(reason) and lane.refusals.try_acquire(now)
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

    def _source(self, delivery: CommandDelivery) -> Source:
        if isinstance(delivery, LocalCommand):
            return "http"
        if self._authority is None:
            return "unsigned"
        return self._authority.fresh_signer(command_of(delivery), delivery.payload) or "unsigned"

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
        """Wait for a command; None after the last one. The lane that had its turn goes behind the others."""
        with self._changed:
            while True:
                for source, lane in self._lanes.items():
                    if lane.waiting:
                        self._lanes[source] = self._lanes.pop(source)
                        return lane.waiting.popleft()
                if self._stopping:
                    return None
                self._changed.wait()
