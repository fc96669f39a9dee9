"""Every command with its handler, and where their answers go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.tasks import Handler
from edged.steering.models import ModelCommands
from edged.steering.training import TrainingCommands

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.domain.anomaly import Anomalies
    from edged.domain.tasks import Sender
    from edged.learning import Learning
    from edged.loop.succession import Succession
    from edged.mqtt.topics import Topics
    from edged.selfreport import SelfReport
    from edged.steering.labelling import Labelling


class Steering:
    """The handlers of `request/<command>`.

    Parameters
    ----------
    learning, succession, selfreport
        The parts that carry commands out.
    labelling
        Carries labels that come as commands.
    publish_states
        Called after a command that changed something.
    publish
        Sends one message over the session.
    topics
        Where answers go to a sender without an MQTT 5 response topic.
    anomalies
        Whose alarms may be accepted; None where the stream has none.
    """

    def __init__(
        self,
        *,
        learning: Learning,
        succession: Succession,
        selfreport: SelfReport,
        labelling: Labelling,
        publish_states: Callable[[], None],
        publish: Callable[..., bool],
        topics: Topics,
        anomalies: Anomalies | None,
    ) -> None:
        self._selfreport = selfreport
        self._labelling = labelling
        self._training = TrainingCommands(learning, selfreport, anomalies)
        self._models = ModelCommands(succession, publish_states)
        self._publish = publish
        self._topics = topics

    def commands(self) -> dict[str, Handler]:
        """Every command with its handler."""
        training, models = self._training, self._models
        return {
            "train": Handler(training.train, "later", resume=training.resume),
            "rollback": Handler(models.roll_back),
            "label": Handler(self._labelling.label),
            "accept": Handler(training.accept),
            "status": Handler(self._status, effect=False),
        }

    def answer(self, command: str, payload: bytes, sender: Sender) -> None:
        """Send an answer where the sender wants it."""
        if sender.response_topic:
            self._publish(sender.response_topic, payload, qos=1, correlation=sender.correlation)
        else:
            self._publish(self._topics.response(command), payload, qos=1)

    def progress(self, transaction: str, payload: bytes) -> None:
        """Say how far a command is."""
        self._publish(self._topics.progress(transaction), payload, qos=0)

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return self._selfreport.status()
