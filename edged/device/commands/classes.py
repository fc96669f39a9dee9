"""The commands `class.add`, `class.remove` and `class.merge`: classes that come, go and become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edged.device.live_pipeline import LivePipeline
    from edged.domain.commands.rules import Answer, Request
    from edged.domain.commands.tasks import Task
    from edged.domain.stream.open_classes import OpenClasses


class ClassCommands:
    """Changes the classes of a stream with `stream.max_classes`.

    A change is one transaction of the sample log, which says by which command: one that was cut off is
    carried out or answered by the next start.
    """

    def __init__(self, pipeline: LivePipeline) -> None:
        self._samples = pipeline.samples

    def add(self, request: Request, task: Task) -> Answer:
        """Give a class an output of the network before its first label.

        Raises RefusedError when it is here already, or no output is free.
        """
        return self._change(task, lambda classes, key: classes.add(request["class"], key))

    def remove(self, request: Request, task: Task) -> Answer:
        """Let a class be none: it is not answered, and its labels neither teach nor judge, old and new ones.

        Raises RefusedError when it is none.
        """
        return self._change(task, lambda classes, key: classes.retire(request["class"], None, key))

    def merge(self, request: Request, task: Task) -> Answer:
        """Let the class `from` count as the class `to`, in labels, old and new ones, and in answers.

        Raises RefusedError when one of them is none.
        """
        return self._change(task, lambda classes, key: classes.retire(request["from"], request["to"], key))

    def resume_add(self, request: Request, task: Task) -> None:
        """Finish and answer the command `class.add` that the end of the daemon cut off."""
        task.done(self.add(request, task))

    def resume_remove(self, request: Request, task: Task) -> None:
        """Finish and answer the command `class.remove` that the end of the daemon cut off."""
        task.done(self.remove(request, task))

    def resume_merge(self, request: Request, task: Task) -> None:
        """Finish and answer the command `class.merge` that the end of the daemon cut off."""
        task.done(self.merge(request, task))

    def _change(self, task: Task, change: Callable[[OpenClasses, str | None], int]) -> Answer:
        with self._samples.changing_classes() as classes:
            if task.key is None or not classes.changed_by(task.key):
                change(classes, task.key)
        return {"classes": list(classes.known), "free": classes.free}
