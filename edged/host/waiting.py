"""Waiting for signals, for other threads, and for work that may hang."""

from __future__ import annotations

import os
import queue
import select
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, TimeoutError  # noqa: A004  the built-in one from Python 3.11 on
from contextlib import suppress
from typing import Any, TypeVar

from edged.errors import ModelError

T = TypeVar("T")


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
        """Wait for the next signal or item, and return it; only in the main thread."""
        while True:
            try:
                return self._queue.get_nowait()
            except queue.Empty:
                select.select([self._wait], [], [])
            try:
                os.read(self._wait, 4096)
            except BlockingIOError:
                continue


def within(seconds: float, doing: str, work: Callable[[], T]) -> T:
    """Return the result of `work`, done on a thread of its own; ModelError when it takes longer.

    A thread cannot be ended: one that takes too long is left behind, and what it brings later is
    not looked at. So `work` must not hold a lock that others need. `doing` names it in the error.

    >>> within(5.0, "adding", lambda: 1 + 1)
    2
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as problem:  # noqa: BLE001  the caller gets it
            done.set_exception(problem)

    threading.Thread(target=run, name=doing, daemon=True).start()
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():
            raise
        raise ModelError(f"{doing} took longer than {seconds:g} s", remedy="use a smaller model") from None
