"""Where commands arrive: repeated deliveries and floods are answered here, all others wait their turn.

A thread hands the commands that wait to the dispatcher, one after the other.
"""

from __future__ import annotations

import collections
import queue
import threading
import zlib
from typing import TYPE_CHECKING

from edged.domain.commands.rules import TokenBucket
from edged.errors import RefusedError

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.config import CommandsConfig
    from edged.device.commands.answers import CommandAnswers, CommandDelivery
    from edged.device.commands.dispatcher import CommandDispatcher
    from edged.domain.commands.running import RunningCommands

MAX_WAITING = 100
REFUSALS = 10.0  # rejections per second that are answered; the others are only counted


class CommandInbox:
    """Queue of received commands, at most `MAX_WAITING`.

    `config` has the rate limit; `answers` answers and acknowledges commands that are not queued.
    """

    def __init__(
        self, config: CommandsConfig, clock: Clock, answers: CommandAnswers, running: RunningCommands
    ) -> None:
        self._config = config
        self._clock = clock
        self._answers = answers
        self._running = running
        self._bucket = TokenBucket(config.rate, config.burst)
        self._refusals = TokenBucket(REFUSALS, REFUSALS)
        self._queue: queue.Queue[CommandDelivery | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._seen: collections.deque[tuple[int, int]] = collections.deque(maxlen=2 * MAX_WAITING)

    def start(self, dispatcher: CommandDispatcher) -> None:
        """Start the thread that has `dispatcher` execute one command after the other."""
        self._thread = threading.Thread(target=self._loop, args=(dispatcher,), name="control", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop after the commands that wait already."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout)

    def receive(self, delivery: CommandDelivery) -> None:
        """Queue a command for the dispatcher; call it on the thread that received the command.

        A command that was queued before its connection broke is acknowledged only. Commands that exceed the
        rate limit or find the queue full are rejected.
        """
        self._running.count("received")
        seen = (delivery.mid, zlib.crc32(delivery.payload, zlib.crc32(delivery.topic.encode())))
        if delivery.dup and delivery.mid and seen in self._seen:
            self._running.count("redelivered")
            self._answers.acknowledge(delivery)
            return
        self._seen.append(seen)
        if delivery.retain and not delivery.payload:
            self._running.count("cleared")  # the retained command on this topic was deleted
            self._answers.acknowledge(delivery)
            return
        if not self._bucket.try_acquire(self._clock.monotonic()):
            self._reject(delivery, f"more than {self._config.rate:g} commands a second")
            return
        try:
            self._queue.put_nowait(delivery)
        except queue.Full:
            self._reject(delivery, f"{MAX_WAITING} commands are waiting already")

    def _reject(self, delivery: CommandDelivery, reason: str) -> None:
        """Answer a command that is too much, as far as answers are not too many; count it."""
        self._running.count("limited")
        if self._refusals.try_acquire(self._clock.monotonic()):
            self._answers.reject(delivery, RefusedError(reason, remedy="send it later"))
        else:
            self._running.count("unanswered")
            self._answers.acknowledge(delivery)

    def _loop(self, dispatcher: CommandDispatcher) -> None:
        while (delivery := self._queue.get()) is not None:
            dispatcher.execute(delivery)
