"""Threads that wait until a loop of another one has been round once, bounded in time."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(eq=False, slots=True)
class Wait:
    """One who waits; `settled` says what came of it, once `done` is set."""

    done: threading.Event = field(default_factory=threading.Event)
    settled: bool = False


class Settling:
    """Who wants a loop to finish what it has at hand; any thread may ask but the one that loops.

    Nobody waits for a loop that is over, nor for ever for one that is stuck.
    """

    def __init__(self) -> None:
        self._waiting: deque[Wait] = deque()
        self._over = False

    def ask(self, wake: Callable[[], object], timeout: float) -> bool:
        """Wait for one whole turn, which `wake` brings about; whether it settled everything in that time."""
        wait = Wait()
        self._waiting.append(wait)
        if self._over:
            return True
        wake()
        return wait.done.wait(timeout) and wait.settled

    def begin(self) -> list[Wait]:
        """At the beginning of a turn, once it can be woken again: who waits for this one."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def done(self, waits: list[Wait], *, settled: bool) -> None:
        """At its end."""
        for wait in waits:
            wait.settled = settled
            wait.done.set()

    def over(self) -> None:
        """The loop has ended and left nothing behind that it could settle."""
        self._over = True
        self.done(self.begin(), settled=True)
