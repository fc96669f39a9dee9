"""How far commands have come and how they end: recorded in the journal, and published."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edged.domain.commands.audit import ABOUT_LABELS, CHANGES, command_entry
from edged.domain.commands.rules import Answer, Request, answer_of
from edged.domain.commands.tasks import CommandProgress, Kind, Sender, Task, TaskProgress
from edged.domain.messages.requests import READS
from edged.errors import EdgedError, StorageError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.clock import Clock
    from edged.device.commands.answers import CommandAnswers
    from edged.domain.audit_chain import AuditEntry
    from edged.domain.commands.rules import State
    from edged.domain.commands.running import RunningCommands
    from edged.domain.training.trainer_messages import RunProgress
    from edged.storage.journal.journal import Journal

log = get_logger("edged.control")


class TaskReporter:
    """Records in the journal, and publishes, that a task was accepted, is executing, and has ended.

    `journal` stores the state and the answer of tasks that have a key. `clock` tells the time of progress and
    of the end. `answers` publishes answers and progress. `running` lists the tasks until they end. The audit
    log has those that change something.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        answers: CommandAnswers,
        running: RunningCommands,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._answers = answers
        self._running = running

    def begin(
        self, name: str, request: Request, key: str | None, sender: Sender, kind: Kind = "later"
    ) -> Task:
        """Make the task of a command that is about to be executed or resumed, and list it as running."""
        task = Task(self, name, request, key, sender, kind)
        self._running.add(task)
        return task

    def accept(self, task: Task, data: Answer) -> None:
        """Publish the first of two answers, unless the task has ended meanwhile."""
        with task.lock:
            if task.over:
                return
            answer = answer_of("accepted", {"state": "accepted", **data}, task.request)
            self._store(task, "accepted", answer)
            task.accepted = True
            self._answers.publish(task.name, answer, task.sender)

    def mark_executing(self, task: Task) -> None:
        """Record and publish that a task is executing."""
        self._store(task, "executing", None)
        self.progress(task, TaskProgress())

    def progress(self, task: Task, done: TaskProgress | RunProgress) -> None:
        """Publish how far a task has come, if it has a transaction."""
        if task.transaction is not None:
            now = self._clock.now()
            self._answers.progress(CommandProgress(task.transaction, task.name, "executing", now, done))

    def finish(self, task: Task, outcome: Answer | EdgedError) -> None:
        """Record how a task ended, and publish it if the answer can be distinguished from the first one."""
        self._running.remove(task)
        change: dict[str, Any] = {}
        if not isinstance(outcome, EdgedError) and task.name not in ABOUT_LABELS:
            change = {name: outcome[name] for name in CHANGES if name in outcome}
            outcome = {name: value for name, value in outcome.items() if name not in CHANGES}
        state, answer = self._answers.conclude(task.name, task.request, outcome)
        ended = self._clock.now()
        via, entry = getattr(task.sender, "via", "mqtt"), None
        if state != "refused" and task.name not in READS:
            entry = command_entry(task.name, task.request, task.key, answer, via, ended)
            entry = replace(entry, **change)
        self._store(task, state, answer, ended=ended, audit=entry)
        # Events report the result of a `train` without an id: its answers could not be distinguished.
        if not task.accepted or task.key is not None or task.kind == "aside":
            self._answers.publish(task.name, answer, task.sender)

    def _store(
        self,
        task: Task,
        state: State,
        answer: Answer | None,
        ended: float | None = None,
        audit: AuditEntry | None = None,
    ) -> None:
        try:
            if task.key is not None:
                self._journal.update_command(task.key, state, answer=answer, ended=ended, audit=audit)
            elif audit is not None:
                self._journal.record_audit(audit)
        except StorageError as problem:
            # The journal knows the command but not its outcome, so that it is not executed twice.
            log.warning("answer_not_kept", command=task.name, id=task.key, problem=problem.line())
