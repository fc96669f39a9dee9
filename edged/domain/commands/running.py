"""The commands that a device is executing, and how many it has received."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edged.domain.commands.tasks import Task

COUNTED = (
    "received", "redelivered", "repeated", "limited", "unanswered", "successful", "failed", "refused",
)  # fmt: skip


class RunningCommands:
    """Commands in progress, and the number of commands by outcome; usable from any thread."""

    def __init__(self) -> None:
        self._counts = collections.Counter(dict.fromkeys(COUNTED, 0))
        self._tasks: list[Task] = []

    def count(self, outcome: str) -> None:
        """Add one to the commands with this outcome."""
        self._counts[outcome] += 1

    @property
    def counts(self) -> dict[str, int]:
        """Number of commands since startup, by outcome."""
        return dict(self._counts)

    def add(self, task: Task) -> None:
        """Add a command that is executing or waits for its turn."""
        self._tasks.append(task)

    def remove(self, task: Task) -> None:
        """Remove a command that has ended."""
        self._tasks.remove(task)

    @property
    def tasks(self) -> list[Task]:
        """Commands that are executing or wait for their turn, oldest first."""
        return list(self._tasks)

    def find(self, transaction: Any) -> Task | None:
        """Return the running command with this transaction; None if there is none."""
        return next((task for task in self._tasks if task.transaction == transaction), None)
