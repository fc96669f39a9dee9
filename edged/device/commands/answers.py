"""Publishing of the answers to commands and of their progress."""

from __future__ import annotations

import abc
import json
from typing import TYPE_CHECKING, Any, Protocol

from edged.domain.commands.rules import answer_of, parse
from edged.domain.commands.tasks import Sender
from edged.domain.messages.encoding import json_ready
from edged.errors import ConfigError, EdgedError, RefusedError
from edged.logs import get_logger

if TYPE_CHECKING:
    from edged.domain.commands.rules import Answer, Request, State
    from edged.domain.commands.running import RunningCommands
    from edged.mqtt.client.command_connection import CommandConnection
    from edged.mqtt.client.session import Session
    from edged.mqtt.topics import Topics

log = get_logger("edged.control")


class CommandDelivery(Sender, Protocol):
    """A command as the session delivers it."""

    topic: str
    payload: bytes
    mid: int
    dup: bool
    retain: bool
    epoch: int


class LocalCommand(abc.ABC):
    """A command from within this process; subclasses receive its answers.

    At QoS 0 and without a packet id: it needs no acknowledgement and is never redelivered.
    """

    mid: int = 0
    qos: int = 0
    dup: bool = False
    retain: bool = False
    epoch: int = 0
    response_topic: str | None = None
    correlation: bytes | None = None
    via: str = "local"  # how the audit log names it

    def __init__(self, topic: str, payload: bytes) -> None:
        self.topic = topic
        self.payload = payload

    @abc.abstractmethod
    def answered(self, payload: bytes) -> None:
        """Receive one answer, encoded as JSON; called from any thread."""


class CommandAnswers:
    """Publishes answers where the sender of a command wants them, and acknowledges commands.

    `session` and `topics`: where answers and progress are published. `connection` acknowledges commands on
    the connection over which they arrived. `running` counts the outcomes.
    """

    def __init__(
        self, session: Session, topics: Topics, connection: CommandConnection, running: RunningCommands
    ) -> None:
        self._session = session
        self._topics = topics
        self._connection = connection
        self._running = running

    def reject(self, delivery: CommandDelivery, problem: EdgedError, request: Request | None = None) -> None:
        """Answer a command that is not executed with the reason, and acknowledge it.

        `request` has the fields of the command; None if they were not read yet.
        """
        name = command_of(delivery)
        fields = _readable_fields(delivery.payload) if request is None else request
        self.publish(name, self.conclude(name, fields, problem)[1], delivery)
        self.acknowledge(delivery)

    def conclude(self, name: str, request: Request, outcome: Request | EdgedError) -> tuple[State, Answer]:
        """Count the outcome of a command; return its final state and the answer that reports it."""
        state: State = "successful"
        if isinstance(outcome, EdgedError):
            state = "refused" if isinstance(outcome, RefusedError) else "failed"
            log.warning("command_refused", command=name, problem=outcome.line())
        self._running.count(state)
        return state, answer_of(state, outcome, request)

    def publish(self, name: str, answer: Answer, sender: Sender) -> None:
        """Publish the answer to the command `name`, on the sender's response topic if it has one."""
        payload = encoded(answer)
        if isinstance(sender, LocalCommand):
            sender.answered(payload)
        elif sender.response_topic:
            self._session.publish(sender.response_topic, payload, qos=1, correlation=sender.correlation)
        else:
            self._session.publish(self._topics.response(name), payload, qos=1)

    def progress(self, transaction: str, fields: Request) -> None:
        """Publish how far a command has come."""
        self._session.publish(self._topics.progress(transaction), encoded(fields), qos=0)

    def acknowledge(self, delivery: Any) -> None:
        """Acknowledge a command to the broker, which then does not redeliver it."""
        self._connection.acknowledge([delivery])


def encoded(values: Any) -> bytes:
    """Encode an answer as JSON; TypeError for values that JSON cannot hold."""
    return json.dumps(json_ready(values), default=float).encode()


def command_of(delivery: CommandDelivery) -> str:
    """Return the name of a command, which is the last part of its topic."""
    return delivery.topic.rpartition("/request/")[2]


def _readable_fields(payload: bytes) -> Request:
    """The fields that an answer can echo; none if the payload cannot be read."""
    try:
        return parse(payload)
    except ConfigError:
        return {}
