"""Threads for loops: one for a loop alone, or a few that the loops of many streams share.

A loop is a `Stage` that takes turns. It sleeps until it is woken, or until its patience has ended.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from edged.domain.protocols import Stage
from edged.logs import get_logger

log = get_logger("edged.turns")

NEVER = float("inf")


class Turns:
    """The turns of one stage on `threads`. `set` wakes it."""

    def __init__(self, threads: TurnThreads) -> None:
        self._threads = threads
        self._over = threading.Event()
        self.stage: Stage | None = None
        self.woken = self.busy = False
        self.due = NEVER  # its next turn without being woken
        self.scheduled = NEVER  # the time of its entry in `_timed`

    def start(self, stage: Stage) -> None:
        """Let `stage` take turns until it says that it is over."""
        self.stage = stage
        self._threads.enter(self)

    def set(self) -> None:
        """Wake the stage; from any thread."""
        if not self.woken:
            self._threads.wake(self)

    def is_set(self) -> bool:
        """Whether it was woken since `clear`."""
        return self.woken

    def clear(self) -> None:
        """Forget that it was woken, before it looks for work."""
        self.woken = False

    def mark_over(self) -> None:
        """Record that the last turn is over."""
        self._over.set()

    def join(self, timeout: float) -> None:
        """Wait for the last turn, at most `timeout` seconds."""
        if self.stage is not None:
            self._over.wait(timeout)

    @property
    def alive(self) -> bool:
        """Whether turns are taken."""
        return self.stage is not None and not self._over.is_set()

    @property
    def shared(self) -> bool:
        """Whether others use these threads."""
        return self._threads.loops > 1

    @property
    def crowded(self) -> bool:
        """Whether others wait for these threads."""
        return self._threads.crowded

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Wait for long within a turn, while another thread takes the turns of others."""
        with self._threads.apart():
            yield


class TurnThreads:
    """At most `count` threads for the turns of all `loops` of one kind; those that wait apart do not count.

    Who is woken first has the next turn, and waits behind all others for the one after it. `kept` threads
    have no turns that come by themselves: whoever is woken does not wait for those. Threads begin when there
    is work, and end with the last loop.
    """

    def __init__(self, name: str, count: int, kept: int = 0) -> None:
        self._name, self._count, self._most_timed = name, count, count - kept
        self._changed = threading.Condition()
        self._ready: deque[Turns] = deque()
        self._timed: list[tuple[float, int, Turns]] = []
        self._numbers = itertools.count()
        self._own = threading.local()  # of each thread, whether its turn has come by itself
        self.loops = self._running = self._idle = self._running_timed = 0

    @property
    def crowded(self) -> bool:
        """Whether a loop waits for a thread."""
        return bool(self._ready)

    def enter(self, turns: Turns) -> None:
        """Let a loop take its first turn, and from then on those that it is woken for."""
        with self._changed:
            self.loops += 1
            self._put(turns)

    def wake(self, turns: Turns) -> None:
        """Let a loop take a turn; from any thread."""
        with self._changed:
            waits = not (turns.woken or turns.busy) and turns.stage is not None
            turns.woken = True
            if waits:
                self._put(turns)
            elif self._ready:
                self._provide()  # it may be among them, and now have a thread that is kept

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Wait for long within a turn, while another thread takes the turns of others."""
        timed: bool = getattr(self._own, "timed", False)
        with self._changed:
            self._running -= 1
            self._running_timed -= timed
            if self._ready:
                self._provide()
        try:
            yield
        finally:
            with self._changed:
                self._running += 1  # one that is too many ends after its turn
                self._running_timed += timed

    # ---- under the lock --------------------------------------------------------------------

    def _put(self, turns: Turns) -> None:
        turns.busy, turns.due = True, NEVER
        self._ready.append(turns)
        self._provide()

    def _provide(self) -> None:
        """A thread for what is ready, if there may be another."""
        if self._idle < len(self._ready) and self._running < self._count:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._running += 1
        else:
            self._changed.notify()

    def _wait(self, turns: Turns, patience: float | None) -> None:
        turns.busy = False
        if turns.woken:
            self._put(turns)
        elif patience is not None:
            turns.due = time.monotonic() + patience
            self._schedule(turns)

    def _schedule(self, turns: Turns) -> None:
        """Wake a thread when a loop is due; one entry for each loop, however often its turn is put off."""
        if turns.due < turns.scheduled:
            turns.scheduled = turns.due
            heapq.heappush(self._timed, (turns.due, next(self._numbers), turns))
            self._changed.notify()

    def _collect(self, now: float) -> None:
        while self._timed and self._timed[0][0] <= now:
            scheduled, _, turns = heapq.heappop(self._timed)
            if scheduled > turns.scheduled:
                continue  # it was scheduled for an earlier time since
            turns.scheduled = NEVER
            if turns.due <= now:
                self._put(turns)
            else:
                self._schedule(turns)

    # ---- the threads -----------------------------------------------------------------------

    def _work(self) -> None:
        while (turns := self._next()) is not None:
            stage, goes_on, patience = turns.stage, True, None
            try:
                if stage is not None:
                    goes_on = stage.turn(woken=turns.woken)
                    patience = stage.patience()
            except Exception:
                log.exception("turn_failed")
            with self._changed:
                self._running_timed -= self._own.timed
                if goes_on:
                    self._wait(turns, patience)
                    continue
                self.loops -= 1
                if not self.loops:
                    self._changed.notify_all()
            turns.mark_over()

    def _next(self) -> Turns | None:
        with self._changed:
            while self.loops and self._running <= self._count:
                now = time.monotonic()
                self._collect(now)
                if (found := self._pop_ready()) is not None:
                    return found
                self._idle += 1
                self._changed.wait(self._timed[0][0] - now if self._timed else None)
                self._idle -= 1
            self._running -= 1
            self._changed.notify()  # what this thread would have taken, another may
            return None

    def _pop_ready(self) -> Turns | None:
        """Remove and return the first loop that may have its turn now; None without one."""
        for place, turns in enumerate(self._ready):
            if turns.woken or self._running_timed < self._most_timed:
                del self._ready[place]
                self._own.timed = not turns.woken
                self._running_timed += self._own.timed
                return turns
        return None
