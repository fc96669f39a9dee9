"""The loop of changes that cannot wait for a training run, such as a change of champion."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from edged.host.turns import Turns, TurnThreads
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.device.learning.worker import TrainingWorker

log = get_logger("edged.learning")

IDLE_SECONDS = 2.0


class ChangeLoop:
    """Carries out changes that threads must not wait for, such as another champion.

    They are carried out as they come, also while a run of `worker` takes hours.
    """

    def __init__(self, worker: TrainingWorker) -> None:
        self._worker = worker
        self._actions: deque[Callable[[], None]] = deque()
        self._turns = Turns(TurnThreads("change", 1))
        self._ending = False
        self._idle: float | None = IDLE_SECONDS  # seconds between two turns without a change

    def defer(self, action: Callable[[], None]) -> None:
        """Call `action` soon on another thread; from any thread."""
        self._actions.append(action)
        self._turns.set()

    def start(self, threads: TurnThreads | None) -> None:
        """Begin, on a thread of its own or on `threads`, where `wake` has turns taken."""
        if threads is not None:
            self._turns, self._idle = Turns(threads), None
        self._turns.start(self)

    def wake(self) -> None:
        """Have a turn taken; from any thread."""
        self._turns.set()

    def stop(self) -> None:
        """Carry out what waits, then end."""
        self._ending = True
        self._turns.set()

    def join(self, timeout: float) -> None:
        """Wait for the last turn, at most `timeout` seconds."""
        self._turns.join(timeout)

    def patience(self) -> float | None:
        """Seconds until the next turn unless woken; None for no end."""
        return self._idle

    def turn(self, *, woken: bool) -> bool:  # noqa: ARG002  what waits tells more
        """See `Stage`: what waits, or what a full disk has refused where nothing does."""
        self._turns.clear()
        over, waiting = self._ending, len(self._actions)
        for _ in range(waiting):
            self._carry_out(self._actions.popleft())
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
