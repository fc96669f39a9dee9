"""Training runs that somebody has asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edged.errors import EdgedError, TrainingError

if TYPE_CHECKING:
    from edged.domain.tasks import Task

TOLD = ("run", "engine", "steps", "samples", "skipped", "seconds", "loss_first", "loss_last", "generation")


@dataclass
class RunOrder:
    """One run: its options, and who waits for its end.

    `resumes` says that it is a run which was cut off, or held back, and begins again by itself.
    """

    options: dict[str, Any]
    tasks: list[Task] = field(default_factory=list)
    resumes: bool = False
    cancelled: bool = False

    def progress(self, message: dict[str, Any]) -> None:
        """The run has come so far."""
        for task in self.tasks:
            task.progress(message)

    def finish(self, outcome: str, result: dict[str, Any], verdict: dict[str, Any] | None) -> None:
        """The run has ended: `result` is what it came to, or its `error`."""
        if outcome != "done":
            self.fail(TrainingError(str(result.get("error", outcome))))
            return
        told = {name: result[name] for name in TOLD if name in result}
        for task in self.tasks:
            task.done(told | {"outcome": outcome, "verdict": verdict})

    def fail(self, problem: EdgedError) -> None:
        """The run has come to nothing."""
        for task in self.tasks:
            task.fail(problem)
