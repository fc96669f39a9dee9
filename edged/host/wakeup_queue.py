"""Where the main thread waits for signals, and for other threads that want it."""

from __future__ import annotations

import os
import queue
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import Any


class WakeupQueue:
    """A queue that signals ring at, too; one per process, made by the main thread.

    A signal may reach the process in any of its threads, and a main thread that waits for a lock is not woken
    then: its handler would run with the next signal. A byte in a pipe, written where the signal arrives, ends
    a `select` in any case. The numbers of `signals` that arrive are put into the queue.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._wait, self._ring = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._ring, warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, lambda got, _: self._queue.put(got))

    def put(self, what: object) -> None:
        """Add an item and wake the reader, from any thread."""
        self._queue.put(what)
        with suppress(BlockingIOError):  # it has rung often enough
            os.write(self._ring, b"\0")

    def get(self) -> Any:
        """The next signal, or what was put; waits for it. In the main thread alone."""
        while True:
            try:
                return self._queue.get_nowait()
            except queue.Empty:
                select.select([self._wait], [], [])
            try:
                os.read(self._wait, 4096)
            except BlockingIOError:
                continue
