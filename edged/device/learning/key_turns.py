"""Training runs of keys that have models of their own, as the learning thread sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from edged.domain.commands.tasks import Task
    from edged.domain.training.training_run import RunOptions
    from edged.domain.training.turns import Waiting


class KeyTurns(Protocol):
    """The models of keys beside the stream's, which take turns at the trainer."""

    def next_key(self, common: Waiting | None) -> str | None:
        """The key whose turn it is; None for the stream's own model, which may be `common` waiting."""

    def train(self, key: str) -> object:
        """Carry out a run of a key."""

    def command(self, key: str, options: RunOptions, task: Task | None = None) -> None:
        """Train a key as soon as the present run has ended; `task` ends with that run."""

    def cancel(self, task: Task | None = None) -> int | None:
        """End the run of a key that is under way, or `task` before its run; RefusedError without either."""

    def store_state(self) -> None:
        """Store what a restart resumes from."""
