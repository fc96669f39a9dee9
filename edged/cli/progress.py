"""Progress bars of commands that take long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from edged.charts.figures import plain
from edged.cli.output import err

if TYPE_CHECKING:
    from edged.domain.training.trainer_messages import CheckpointWritten, RunProgress


class Bars:
    """Progress bars on stderr that are there only on a terminal."""

    def __init__(self, *columns: str) -> None:
        first, *rest = map(TextColumn, columns)
        shown = (first, BarColumn(), *rest, TimeRemainingColumn())
        self._progress = Progress(*shown, console=err, transient=True, disable=not err.is_terminal)

    def __enter__(self) -> Any:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class TrainingProgress(Bars):
    """Steps and loss of a run."""

    def __init__(self) -> None:
        super().__init__("training", "{task.completed}/{task.total} steps", "{task.fields[note]}")
        self._task = self._progress.add_task("", total=None, note="")

    def progress(self, message: RunProgress) -> None:
        """Show how far the trainer is."""
        note = f"loss {plain(message.loss)}"
        self._progress.update(self._task, total=message.steps, completed=message.step, note=note)

    def checkpointed(self, message: CheckpointWritten) -> None:
        """Show nothing: the bar goes on."""


class ReplayProgress(Bars):
    """Position in a recorded stream, of one configuration after the other."""

    def __init__(self) -> None:
        super().__init__("{task.description}", "{task.completed}/{task.total} samples", "{task.fields[note]}")
        self._task = self._progress.add_task("replaying", total=None, note="")

    def update(self, name: str, position: int, total: int, version: int) -> None:
        """Show the position of a configuration after a block of samples."""
        self._progress.update(
            self._task, description=escape(name), total=total, completed=position, note=f"model {version}"
        )


class ImportBar(Bars):
    """How many samples of a file are stored; how many there are nobody knows before its end."""

    def __init__(self) -> None:
        super().__init__("importing", "{task.fields[note]}", "{task.completed:,} samples")
        self._task = self._progress.add_task("", total=None, note="")

    def update(self, file: str, stored: int) -> None:
        """Show a file and how many of its samples are stored."""
        self._progress.update(self._task, completed=stored, note=escape(file))
