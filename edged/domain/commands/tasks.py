"""Commands in progress, and the handlers that execute them."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from edged.domain.commands.rules import Answer, Request, State
from edged.domain.json_fields import JsonObject
from edged.domain.training.message import Message, SparseMessage
from edged.domain.training.trainer_messages import RunProgress
from edged.errors import EdgedError

Kind = Literal["now", "again", "aside", "later"]
"""How a command is executed; see `Handler`."""


@dataclass(frozen=True)
class TaskProgress(SparseMessage):
    """How far a command is that trains nothing: `rows` evaluated `of` all, or `bytes` of a file to write."""

    rows: int | None = None
    of: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class CommandProgress(Message):
    """How far the command with this transaction was at `ts` (Unix seconds), as it is published."""

    transaction: object
    command: str
    state: State
    ts: float
    done: TaskProgress | RunProgress

    def to_json(self) -> JsonObject:
        """Return all on one level."""
        return {**self.without("done"), **self.done.to_json()}


class Sender(Protocol):
    """Where an answer goes: a delivery, or its record in the journal."""

    @property
    def response_topic(self) -> str | None:
        """Topic of the response that the requester named (MQTT 5)."""

    @property
    def correlation(self) -> bytes | None:
        """Correlation data that the answer must echo (MQTT 5)."""


class TaskHost(Protocol):
    """Records and publishes how far a task has come."""

    def mark_executing(self, task: Task) -> None:
        """Record that the task is being executed."""

    def progress(self, task: Task, done: TaskProgress | RunProgress) -> None:
        """Publish how far the task has come."""

    def finish(self, task: Task, outcome: Answer | EdgedError) -> None:
        """Record the outcome of a finished task."""


class Task:
    """One command in progress; may be used from any thread. After its end all calls are ignored.

    Attributes
    ----------
    name, request, key, sender
        The command, all its fields, its key in the journal (None if it has none), and who sent it.
    kind
        How it is executed.
    accepted, over
        Whether the first of two answers was published, and whether the command has ended.
    cancelled
        Whether it was asked to end as soon as it can.
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
        """The id that its sender has given it; None without one."""
        return self.request.get("transaction")

    def mark_executing(self) -> None:
        """Record that the task is being executed."""
        with self.lock:
            if not self.over:
                self._host.mark_executing(self)

    def progress(self, done: TaskProgress | RunProgress) -> None:
        """Publish how far the task has come."""
        if not self.over:
            self._host.progress(self, done)

    def done(self, data: Answer) -> None:
        """Finish the task with its result."""
        self._finish(data)

    def fail(self, problem: EdgedError) -> None:
        """Finish the task with an error."""
        self._finish(problem)

    def _finish(self, outcome: Answer | EdgedError) -> None:
        with self.lock:
            if not self.over:
                self.over = True
                self._host.finish(self, outcome)


class Handler(NamedTuple):
    """How a command is executed.

    Attributes
    ----------
    carry_out
        Takes the request's own fields. With `now` it returns the data of the answer; with all others it
        takes a Task, too. `again` is `now` for what knows by its task what it has done already: it is carried
        out again if the end of the daemon cut it off. `aside` runs on the thread of commands that take long
        and returns the data of the last answer; `later` returns the data of the first one, and another part
        ends the task. `before` and `after` in the data of an ended command that changes
        settings are for the audit log, not for the answer.
    kind
        One of these four.
    resume
        Continues a `later` command that the end of the daemon interrupted; without it such a command fails.
    """

    carry_out: Callable[..., Answer]
    kind: Kind = "now"
    resume: Callable[[Request, Task], None] | None = None

    @property
    def survives(self) -> bool:
        """Whether a command that the end of the daemon interrupted goes on."""
        return self.kind == "again" or self.resume is not None


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
