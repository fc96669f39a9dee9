"""Training runs that somebody has asked for."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from edged.device.learning.queued_run import QueuedRun
from edged.errors import RefusedError

if TYPE_CHECKING:
    from edged.domain.commands.tasks import Task
    from edged.domain.training.training_run import RunOptions
    from edged.domain.training.triggers import Triggers


class RunQueue:
    """Runs that have not started, at most `MOST` of them; may be used from any thread.

    While one of them was asked for by a command, `triggers.commanded` is set.
    """

    MOST = 8

    def __init__(self, triggers: Triggers) -> None:
        self._waiting: deque[QueuedRun] = deque()
        self._triggers = triggers
        self._lock = threading.Lock()

    def add(self, options: RunOptions, task: Task | None) -> None:
        """Add a run; tasks that ask for the same options get the same run.

        Raises RefusedError when too many wait.
        """
        with self._lock:
            order = next((order for order in self._waiting if order.options == options), None)
            if order is None:
                if len(self._waiting) >= self.MOST:
                    raise RefusedError(
                        f"{self.MOST} runs that were asked for have not begun yet", where="train"
                    )
                order = QueuedRun(options)
                self._waiting.append(order)
            if task is not None:
                order.tasks.append(task)
            self._triggers.commanded = True

    def resume(self, order: QueuedRun) -> None:
        """Put a run that starts again without a command before all others, or join it with the same run."""
        if not order.tasks:
            return
        with self._lock:
            if self._waiting and self._waiting[0].resumes and self._waiting[0].options == order.options:
                self._waiting[0].tasks += order.tasks
                return
            order.resumes = True
            self._waiting.appendleft(order)

    def pop(self, trigger: str) -> QueuedRun:
        """Return and remove the queued run that starts now; an empty one if none was queued."""
        with self._lock:
            order = QueuedRun()
            if self._waiting and (trigger == "command" or self._waiting[0].resumes):
                order = self._waiting.popleft()
            self._report()
        return order

    def withdraw(self, task: Task) -> bool:
        """Remove a task that waits, and its run if nobody else asked for it; False if it does not wait."""
        with self._lock:
            order = next((order for order in self._waiting if task in order.tasks), None)
            if order is None:
                return False
            order.tasks.remove(task)
            if not order.tasks:
                self._waiting.remove(order)
            self._report()
        return True

    def _report(self) -> None:
        self._triggers.commanded = any(not order.resumes for order in self._waiting)
