"""The loop of changes that cannot wait for a training run, such as a change of champion."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from edged.domain.protocols import Stage
from edged.host.turns import Turns, TurnThreads
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.learning.worker import TrainingWorker

log = get_logger("edged.learning")

IDLE_SECONDS = 2.0


class ChangeQueue:
    """Changes that threads must not wait for, such as another champion; `ChangeLoop` carries them out."""

    def __init__(self) -> None:
        self.actions: deque[Callable[[], None]] = deque()
        self._turns = Turns(TurnThreads("change", 1))

    def defer(self, action: Callable[[], None]) -> None:
        """Call `action` soon on another thread; from any thread."""
        self.actions.append(action)
        self._turns.set()

    def start(self, stage: Stage, threads: TurnThreads | None) -> None:
        """Let `stage` carry out what waits, on a thread of its own or on `threads`."""
        if threads is not None:
            self._turns = Turns(threads)
        self._turns.start(stage)

    def wake(self) -> None:
        """Have a turn taken; from any thread."""
        self._turns.set()

    def clear(self) -> None:
        """Forget that it was woken, before what waits is counted."""
        self._turns.clear()

    def join(self, timeout: float) -> None:
        """Wait for the last turn, at most `timeout` seconds."""
        self._turns.join(timeout)


class ChangeLoop:
    """The loop that carries out changes as they come, also while a run of `worker` takes hours."""

    def __init__(self, worker: TrainingWorker, queue: ChangeQueue) -> None:
        self._worker, self._queue = worker, queue
        self._ending = False
        self._idle: float | None = IDLE_SECONDS  # seconds between two turns without a change

    def start(self, threads: TurnThreads | None) -> None:
        """Begin, on a thread of its own or on `threads`, where `look` wakes it."""
        if threads is not None:
            self._idle = None
        self._queue.start(self, threads)

    def stop(self) -> None:
        """Carry out what waits, then end."""
        self._ending = True
        self._queue.wake()

    def patience(self) -> float | None:
        """Seconds until the next turn unless woken; None for no end."""
        return self._idle

    def turn(self, *, woken: bool) -> bool:  # noqa: ARG002  what waits tells more
        """See `Stage`: what waits, or what a full disk has refused where nothing does."""
        self._queue.clear()
        over, waiting = self._ending, len(self._queue.actions)
        for _ in range(waiting):
            self._carry_out(self._queue.actions.popleft())
        if not waiting and not over:
            self._catch_up()
        return not over

    def _carry_out(self, action: Callable[[], None]) -> None:
        try:
            action()
            self._worker.changed()
        except Exception:
            log.exception("change_failed")

    def _catch_up(self) -> None:
        try:
            self._worker.catch_up()
        except Exception:
            log.exception("change_failed")
