"""Training runs that somebody has asked for."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edged.domain.training.training_run import RunOptions
from edged.errors import EdgedError, RefusedError, TrainingError

if TYPE_CHECKING:
    from edged.domain.commands.tasks import Task
    from edged.domain.judging.gate import Verdict
    from edged.domain.training.trainer_messages import CheckpointWritten, RunProgress
    from edged.domain.training.training_run import JudgedCandidate, RunEnd
    from edged.domain.training.triggers import Triggers


@dataclass
class QueuedRun:
    """One run: its options, and who waits for its end.

    `resumes` says that it is a run which was cut off, or held back, and begins again by itself.
    """

    options: RunOptions = field(default_factory=RunOptions)
    tasks: list[Task] = field(default_factory=list)
    resumes: bool = False
    cancelled: bool = False
    checkpointing: list[Task] = field(default_factory=list)

    def progress(self, message: RunProgress) -> None:
        """The run has come so far."""
        for task in self.tasks:
            task.progress(message.to_json())

    def checkpointed(self, message: CheckpointWritten) -> None:
        """Report a checkpoint to the commands that asked for one."""
        self.end_checkpointing(message.generation, message.step)

    def end_checkpointing(self, generation: int | None, step: int | None) -> None:
        """Report to the commands that wait for a checkpoint which one there is."""
        tasks, self.checkpointing = self.checkpointing, []
        for task in tasks:
            task.done({"generation": generation, "step": step})

    def finish(self, end: RunEnd, judged: JudgedCandidate | Verdict | None) -> None:
        """Report the end of the run, and the verdict on its candidate."""
        if end.outcome != "done":
            self.fail(TrainingError(end.error or end.outcome))
            return
        verdict = None if judged is None else judged.to_json()
        for task in self.tasks:
            task.done(end.answer() | {"verdict": verdict})

    def fail(self, problem: EdgedError) -> None:
        """The run has come to nothing."""
        for task in self.tasks:
            task.fail(problem)


class RunQueue:
    """Runs that have not begun; may be used from any thread.

    While one of them asks for a run of its own, `triggers.commanded` is set.
    """

    MOST = 8

    def __init__(self, triggers: Triggers) -> None:
        self._waiting: deque[QueuedRun] = deque()
        self._triggers = triggers
        self._lock = threading.Lock()

    def add(self, options: RunOptions, task: Task | None) -> None:
        """One more; those that ask for the same get the same run.

        Raises
        ------
        RefusedError
            When too many wait.
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
        """One that begins again by itself, before all others."""
        if order.tasks:
            with self._lock:
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
        """Whether this task was waiting; it is not any more."""
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
