"""Answers to commands and their progress: recorded in the journal, and published."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from edged.clock import Clock
from edged.domain.audit_chain import ABOUT_LABELS, CHANGES, AuditEntry, command_entry
from edged.domain.commands.rules import Answer, Request, State, answer_of, parse
from edged.domain.commands.tasks import CommandProgress, Kind, RunningCommands, Sender, Task, TaskProgress
from edged.domain.json_fields import json_ready
from edged.domain.messages.requests import READS
from edged.domain.training.trainer_messages import RunProgress
from edged.errors import ConfigError, EdgedError, RefusedError, StorageError
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.client.session import Session
from edged.mqtt.topics import Topics, is_topic, matches
from edged.storage.journal.journal import Journal

log = get_logger("edged.control")


class CommandDelivery(Sender, Protocol):
    """A command as the session delivers it."""

    topic: str
    payload: bytes
    mid: int
    dup: bool
    retain: bool
    epoch: int


class HttpCommand:
    """A command of an HTTP request; `receive` takes each answer, encoded as JSON, on any thread.

    At QoS 0 and without a packet id: it needs no acknowledgement and is never redelivered. `token`: its
    sender has shown a token for control.
    """

    mid: int = 0
    qos: int = 0
    dup: bool = False
    retain: bool = False
    epoch: int = 0
    response_topic: str | None = None
    correlation: bytes | None = None
    via: str = "http"  # how the audit log names it

    def __init__(self, topic: str, payload: bytes, receive: Callable[[bytes], None], *, token: bool) -> None:
        self.topic = topic
        self.payload = payload
        self.receive = receive
        self.token = token


class CommandAnswers:
    """Publishes answers where the sender of a command wants them, and acknowledges commands.

    Of a task it records in the journal, and publishes, that it was accepted, is executing, and has ended.

    `session` and `topics`: where answers and progress are published. `running` counts the outcomes, and lists
    the tasks until they end. `answer_to`: filters of the topics outside the device's own `response/` that a
    sender may name. `journal` stores the state and the answer of tasks that have a key, and what changes
    something for the audit log. `clock` tells the time of progress and of the end.
    """

    def __init__(
        self,
        session: Session,
        topics: Topics,
        running: RunningCommands,
        answer_to: Sequence[str] = (),
        *,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._answer_to = answer_to
        self._session = session
        self._topics = topics
        self._running = running
        self._journal = journal
        self._clock = clock

    def reject(self, delivery: CommandDelivery, problem: EdgedError, request: Request | None = None) -> None:
        """Answer a command that is not executed with the reason, and acknowledge it.

        `request` has the fields of the command; None if they were not read yet.
        """
        name = command_of(delivery)
        fields = _readable_fields(delivery.payload) if request is None else request
        self.publish(name, self.conclude(name, fields, problem)[1], delivery)
        self.acknowledge(delivery)

    def conclude(self, name: str, request: Request, outcome: Answer | EdgedError) -> tuple[State, Answer]:
        """Count the outcome of a command; return its final state and the answer that reports it."""
        state: State = "successful"
        if isinstance(outcome, EdgedError):
            state = "refused" if isinstance(outcome, RefusedError) else "failed"
            log.warning("command_refused", command=name, problem=outcome.line())
        self._running.count(state)
        return state, answer_of(state, outcome, request)

    def publish(self, name: str, answer: Answer, sender: Sender) -> None:
        """Publish the answer to the command `name`, on the sender's response topic if that is allowed.

        Else on the default topic, spelled as the command's topic was.
        """
        payload = encoded(answer)
        if isinstance(sender, HttpCommand):
            sender.receive(payload)
            return
        topic = sender.response_topic
        if topic is None or not self._may_answer_on(topic):
            asked = _spelled(sender.topic) if isinstance(sender, ReceivedMessage) else name
            topic = self._topics.response(asked)
        self._session.publish(topic, payload, qos=1, correlation=sender.correlation)

    def _may_answer_on(self, topic: str) -> bool:
        own = topic.startswith(self._topics.response(""))
        return is_topic(topic) and (own or any(matches(pattern, topic) for pattern in self._answer_to))

    def publish_progress(self, progress: CommandProgress) -> None:
        """Publish how far a command has come."""
        named = progress.transaction
        topic = self._topics.progress(named if isinstance(named, str) else json.dumps(named))
        self._session.publish(topic, encoded(progress.to_json()), qos=0)

    def acknowledge(self, delivery: Any) -> None:
        """Acknowledge a command to the broker, which then does not redeliver it."""
        self._session.ack([delivery])

    # ---- tasks -----------------------------------------------------------------------------

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
            self.publish(task.name, answer, task.sender)

    def mark_executing(self, task: Task) -> None:
        """Record and publish that a task is executing."""
        self._store(task, "executing", None)
        self.progress(task, TaskProgress())

    def progress(self, task: Task, done: TaskProgress | RunProgress) -> None:
        """Publish how far a task has come, if it has a transaction."""
        if task.transaction is not None:
            now = self._clock.now()
            self.publish_progress(CommandProgress(task.transaction, task.name, "executing", now, done))

    def finish(self, task: Task, outcome: Answer | EdgedError) -> None:
        """Record how a task ended, and publish it if the answer can be distinguished from the first one."""
        self._running.remove(task)
        change: dict[str, Any] = {}
        if not isinstance(outcome, EdgedError) and task.name not in ABOUT_LABELS:
            change = {name: outcome[name] for name in CHANGES if name in outcome}
            outcome = {name: value for name, value in outcome.items() if name not in CHANGES}
        state, answer = self.conclude(task.name, task.request, outcome)
        ended = self._clock.now()
        via, entry = getattr(task.sender, "via", "mqtt"), None
        if state != "refused" and task.name not in READS:
            entry = command_entry(task.name, task.request, task.key, answer, via, ended)
            entry = replace(entry, **change)
        self._store(task, state, answer, ended=ended, audit=entry)
        # Events report the result of a `train` without an id: its answers could not be distinguished.
        if not task.accepted or task.key is not None or task.kind == "aside":
            self.publish(task.name, answer, task.sender)

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


def encoded(values: Any) -> bytes:
    """Encode an answer as JSON; TypeError for values that JSON cannot hold."""
    return json.dumps(json_ready(values), default=float).encode()


def command_of(delivery: CommandDelivery) -> str:
    """Return the name of a command, which is the last part of its topic.

    Brokers that keep topics as AMQP routing keys (RabbitMQ) turn its dots into slashes.
    """
    return _spelled(delivery.topic).replace("/", ".")


def _spelled(topic: str) -> str:
    """The name of a command as it stands in its topic."""
    return topic.rpartition("/request/")[2]


def _readable_fields(payload: bytes) -> Request:
    """The fields that an answer can echo; none if the payload cannot be read."""
    try:
        return parse(payload)
    except ConfigError:
        return {}
