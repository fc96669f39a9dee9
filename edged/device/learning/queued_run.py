"""A training run that was asked for, and who waits for its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edged.domain.training.training_run import RunOptions
from edged.errors import EdgedError, RefusedError, TrainingError

if TYPE_CHECKING:
    from edged.domain.commands.tasks import Task
    from edged.domain.judging.verdict import Verdict
    from edged.domain.training.trainer_messages import CheckpointWritten, RunProgress
    from edged.domain.training.training_run import JudgedCandidate, RunEnd


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
