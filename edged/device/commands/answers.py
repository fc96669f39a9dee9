"""Publishing of the answers to commands and of their progress."""

from __future__ import annotations

import abc
import json
from typing import TYPE_CHECKING, Any, Protocol

from edged.domain.commands.rules import answer_of, parse
from edged.domain.commands.tasks import CommandProgress, Sender
from edged.domain.messages.encoding import json_ready
from edged.errors import ConfigError, EdgedError, RefusedError
from edged.logs import get_logger
from edged.mqtt.client.message import ReceivedMessage
from edged.mqtt.topics import is_topic, matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edged.domain.commands.rules import Answer, Request, State
    from edged.domain.commands.running import RunningCommands
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
    via: str = "local"  # how the audit log names it

    def __init__(self, topic: str, payload: bytes, *, token: bool = False) -> None:
        self.topic = topic
        self.payload = payload
        self.token = token

    @abc.abstractmethod
    def answered(self, payload: bytes) -> None:
        """Receive one answer, encoded as JSON; called from any thread."""


class CommandAnswers:
    """Publishes answers where the sender of a command wants them, and acknowledges commands.

    `session` and `topics`: where answers and progress are published. `running` counts the outcomes.
    `answer_to`: filters of the topics outside the device's own `response/` that a sender may name.
    """

    def __init__(
        self,
        session: Session,
        topics: Topics,
        running: RunningCommands,
        answer_to: Sequence[str] = (),
    ) -> None:
        self._answer_to = answer_to
        self._session = session
        self._topics = topics
        self._running = running

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
        if isinstance(sender, LocalCommand):
            sender.answered(payload)
            return
        topic = sender.response_topic
        if topic is None or not self._may_answer_on(topic):
            asked = _spelled(sender.topic) if isinstance(sender, ReceivedMessage) else name
            topic = self._topics.response(asked)
        self._session.publish(topic, payload, qos=1, correlation=sender.correlation)

    def _may_answer_on(self, topic: str) -> bool:
        own = topic.startswith(self._topics.response(""))
        return is_topic(topic) and (own or any(matches(pattern, topic) for pattern in self._answer_to))

    def progress(self, progress: CommandProgress) -> None:
        """Publish how far a command has come."""
        named = progress.transaction
        topic = self._topics.progress(named if isinstance(named, str) else json.dumps(named))
        self._session.publish(topic, encoded(progress.to_json()), qos=0)

    def acknowledge(self, delivery: Any) -> None:
        """Acknowledge a command to the broker, which then does not redeliver it."""
        self._session.ack([delivery])


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
