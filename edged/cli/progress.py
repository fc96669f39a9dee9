"""Progress bars of commands that take long."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from edged.charts.figures import figure, plain
from edged.cli.output import err

if TYPE_CHECKING:
    from edged.domain.training.trainer_messages import CheckpointWritten, RunProgress
    from edged.workbench.experiments.job import EpochDone, TrialOrder


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
    """Position in a recorded stream."""

    def __init__(self) -> None:
        super().__init__("replaying", "{task.completed}/{task.total} samples", "{task.fields[note]}")
        self._task = self._progress.add_task("", total=None, note="")

    def update(self, position: int, total: int, version: int) -> None:
        """Show the position after a block of samples."""
        self._progress.update(self._task, total=total, completed=position, note=f"model {version}")


class ImportBar(Bars):
    """How many samples of a file are stored; how many there are nobody knows before its end."""

    def __init__(self) -> None:
        super().__init__("importing", "{task.fields[note]}", "{task.completed:,} samples")
        self._task = self._progress.add_task("", total=None, note="")

    def update(self, file: str, stored: int) -> None:
        """Show a file and how many of its samples are stored."""
        self._progress.update(self._task, completed=stored, note=escape(file))


class RecipeProgress(Bars):
    """A bar over all trainings, and one for each that is going on."""

    def __init__(self) -> None:
        super().__init__("{task.description}", "{task.completed:.0f}/{task.total:.0f}", "{task.fields[note]}")
        self._tasks: dict[tuple[str, int], Any] = {}
        self._lock = threading.Lock()

    def begin(self, orders: Sequence[TrialOrder]) -> None:
        """Know how many trainings there are."""
        self._whole = self._progress.add_task("trainings", total=len(orders), note="")

    def advanced(self, order: TrialOrder, point: EpochDone) -> None:
        """Show the epoch of a training and its validation metric."""
        key = (order.recipe.name, order.seed)
        with self._lock:
            if key not in self._tasks:
                name = f"  {escape(order.recipe.name)}, seed {order.seed}"
                self._tasks[key] = self._progress.add_task(name, total=point.epochs, note="")
            value = point.validation_metric
            note = f"{order.metric.replace('_', ' ')} {figure(order.metric, value)}"
            self._progress.update(self._tasks[key], completed=point.epoch, note=note)

    def ended(self, order: TrialOrder) -> None:
        """Remove the bar of a training, and count it."""
        with self._lock:
            task = self._tasks.pop((order.recipe.name, order.seed), None)
            if task is not None:
                self._progress.remove_task(task)
            self._progress.advance(self._whole)
