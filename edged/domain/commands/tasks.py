"""Commands under way: what carries them out, and what that tells of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from edged.domain.commands.rules import Request
    from edged.errors import EdgedError


Kind = Literal["now", "aside", "later"]
"""How a command is executed; see `Handler`."""


class Sender(Protocol):
    """Where an answer goes: a delivery, or what is remembered of one."""

    @property
    def response_topic(self) -> str | None:
        """Topic of the response that the requester named (MQTT 5)."""

    @property
    def correlation(self) -> bytes | None:
        """What the asker wants echoed (MQTT 5)."""


class TaskHost(Protocol):
    """Who keeps and tells how far a task has come."""

    def mark_executing(self, task: Task) -> None:
        """Record that the task is being executed."""

    def progress(self, task: Task, fields: Request) -> None:
        """Publish how far the task has come."""

    def finish(self, task: Task, outcome: Request | EdgedError) -> None:
        """Record the outcome of a finished task."""


class Task:
    """One command under way; may be used from any thread. What comes after its end is passed over.

    Attributes
    ----------
    name, request, key, sender
        The command, all its fields, what it is known by (None for nothing), and who asked.
    kind
        How it is executed.
    accepted, over
        Whether the first of two answers was given, and whether the last one was.
    cancelled
        Somebody wants it to end, as soon as it can.
    """

    def __init__(
        self,
        host: TaskHost,
        name: str,
        request: Request,
        key: str | None,
        sender: Sender,
        kind: Kind = "later",
    ) -> None:
        self.name = name
        self.request = request
        self.key = key
        self.sender = sender
        self.kind = kind
        self.accepted = False
        self.over = False
        self.cancelled = False
        self.lock = threading.RLock()
        self._host = host

    @property
    def transaction(self) -> Any:
        """What the asker calls it."""
        return self.request.get("transaction")

    def mark_executing(self) -> None:
        """Record that the task is being executed."""
        with self.lock:
            if not self.over:
                self._host.mark_executing(self)

    def progress(self, fields: Request) -> None:
        """Publish how far the task has come."""
        if not self.over:
            self._host.progress(self, fields)

    def done(self, data: Request) -> None:
        """Finish the task with its result."""
        self._end(data)

    def fail(self, problem: EdgedError) -> None:
        """Finish the task with an error."""
        self._end(problem)

    def _end(self, outcome: Request | EdgedError) -> None:
        with self.lock:
            if not self.over:
                self.over = True
                self._host.finish(self, outcome)


class Handler(NamedTuple):
    """What carries a command out.

    Attributes
    ----------
    carry_out
        Takes the request's own fields. With `now` it returns the data of the answer. With `aside` and
        `later` it takes a Task, too: `aside` runs on a thread for what takes long and returns the data of
        the last answer, `later` returns those of the first one, and somebody ends the task some time.
    kind
        See above.
    effect
        False for commands that only read: they are not kept, and answered anew each time.
    resume
        Goes on with a command that the end of the daemon cut off; without it that one has failed.
    """

    carry_out: Callable[..., Request]
    kind: Kind = "now"
    effect: bool = True
    resume: Callable[[Request, Task], None] | None = None
