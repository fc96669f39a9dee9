"""Training runs that commands have asked for, and who waits for their end."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from edged.domain.commands.tasks import Task
from edged.domain.judging.verdict import Verdict
from edged.domain.training.trainer_messages import CheckpointWritten, RunProgress
from edged.domain.training.training_run import JudgedCandidate, RunEnd, RunOptions
from edged.domain.training.triggers import Triggers
from edged.errors import EdgedError, RefusedError, TrainingError


class RunQueue:
    """Runs that have not started, at most `MOST` of them; may be used from any thread.

    While a run was asked for by a command, `triggers.commanded` is set; while a run that starts without
    another command has somebody who waits for it, `triggers.interrupted` is.
    """

    MOST = 8

    def __init__(self, triggers: Triggers) -> None:
        self._waiting: deque[QueuedRun] = deque()
        self._held: deque[QueuedRun] = deque()
        self._triggers = triggers
        self._count = 0
        self._lock = threading.Lock()

    def add(self, options: RunOptions, task: Task | None, *, resumes: bool = False) -> None:
        """Add a run; tasks that ask for the same options get the same run.

        With `resumes` it continues the run that was cut off, and is the next one. Raises RefusedError when
        too many wait.
        """
        with self._lock:
            same = (order for order in self._waiting if order.resumes == resumes)
            order = next((order for order in same if resumes or order.options == options), None)
            if order is None:
                if len(self._waiting) >= self.MOST:
                    raise RefusedError(
                        f"{self.MOST} runs that were asked for have not begun yet", where="train"
                    )
                order = self._numbered(QueuedRun(options, resumes=resumes))
                (self._waiting.appendleft if resumes else self._waiting.append)(order)
            if task is not None:
                order.tasks.append(task)
            self._report()

    def resume(self, order: QueuedRun) -> None:
        """Hold a run until the trigger `resume`: one that was cut off, or that the disk did not let begin.

        All who wait for the run that was cut off get the same run; the others start in their order.
        """
        if not order.tasks:
            return
        with self._lock:
            cut_off = next((held for held in self._held if held.resumes and order.resumes), None)
            if cut_off is not None:
                cut_off.tasks += order.tasks
            else:
                self._held.append(self._numbered(order))
                self._held = deque(sorted(self._held, key=lambda held: (not held.resumes, held.number)))
            self._report()

    def pop(self, trigger: str) -> QueuedRun:
        """Return and remove the queued run that starts now; an empty one if none was queued.

        A run of a command takes the place of the one that was cut off, which then starts from the beginning.
        """
        with self._lock:
            runs = {"command": self._waiting, "resume": self._held}.get(trigger)
            order = runs.popleft() if runs else QueuedRun(resumes=True)
            if not (order.resumes or order.options.dry_run):
                for held in self._held:
                    held.resumes = False
            self._report()
        return order

    def withdraw(self, task: Task) -> QueuedRun | None:
        """Remove a waiting task, and its run if it is the only task; return the run, None if none waits."""
        with self._lock:
            for runs in (self._waiting, self._held):
                order = next((order for order in runs if task in order.tasks), None)
                if order is not None:
                    order.tasks.remove(task)
                    if not order.tasks:
                        runs.remove(order)
                    self._report()
                    return order
        return None

    def report(self) -> None:
        """Set the triggers again, after they were cleared."""
        with self._lock:
            self._report()

    def _numbered(self, order: QueuedRun) -> QueuedRun:
        if not order.number:
            self._count += 1
            order.number = self._count
        return order

    def _report(self) -> None:
        self._triggers.commanded = bool(self._waiting)
        self._triggers.interrupted |= bool(self._held)


@dataclass
class QueuedRun:
    """One run: its options, and the commands that wait for its end.

    `resumes` says that it continues a run that was cut off; `number` is its place in the queue, from 1 on.
    `checkpointing` are the commands that wait for its next checkpoint.
    """

    options: RunOptions = field(default_factory=RunOptions)
    tasks: list[Task] = field(default_factory=list)
    resumes: bool = False
    number: int = 0
    cancelled: bool = False
    checkpointing: list[Task] = field(default_factory=list)

    def progress(self, message: RunProgress) -> None:
        """Report the progress of the run to those who asked for it."""
        for task in self.tasks:
            task.progress(message)

    def checkpointed(self, message: CheckpointWritten) -> None:
        """Report a checkpoint to the commands that asked for one."""
        self.report_checkpoint(message.generation, message.step)

    def report_checkpoint(self, generation: int | None, step: int | None) -> None:
        """Answer the commands that wait for a checkpoint: its generation and step, None without one."""
        tasks, self.checkpointing = self.checkpointing, []
        for task in tasks:
            task.done({"generation": generation, "step": step})

    def finish(self, end: RunEnd, judged: JudgedCandidate | Verdict | None) -> None:
        """Report the end of the run, with its result and the verdict on its candidate, or why it failed."""
        if end.outcome != "done":
            kind = RefusedError if end.outcome == "no_data" else TrainingError
            self.fail(kind(end.error or end.outcome))
            return
        verdict = None if judged is None else judged.to_json()
        for task in self.tasks:
            task.done({**end.answer(), "verdict": verdict})

    def fail(self, problem: EdgedError) -> None:
        """Report to those who asked for the run that it failed."""
        for task in self.tasks:
            task.fail(problem)
