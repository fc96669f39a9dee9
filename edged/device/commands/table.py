"""Every command with its handler, and where their answers go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.device.commands.models import ModelCommands
from edged.device.commands.pauses import PauseCommands
from edged.device.commands.queries import QueryCommands
from edged.device.commands.settings import SettingsCommands
from edged.device.commands.training import TrainingCommands
from edged.device.commands.wipe import WipeCommands
from edged.domain.commands.tasks import Handler
from edged.domain.messages.requests import REQUESTS
from edged.domain.messages.validate import check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edged.device.commands.context import Parts
    from edged.device.commands.labelling import LabelCommands
    from edged.domain.commands.rules import Request
    from edged.domain.commands.tasks import Sender


class CommandTable:
    """The handlers of `request/<command>`.

    Parameters
    ----------
    parts
        What they work on.
    labelling
        Carries labels that come as commands.
    arrivals
        What takes updates of weights and bundles, by command.
    """

    def __init__(
        self, parts: Parts, labelling: LabelCommands, arrivals: Mapping[str, Callable[[Request], Request]]
    ) -> None:
        self._parts = parts
        self._arrivals = {name: Handler(handler) for name, handler in arrivals.items()}
        self._labelling = labelling
        self._training = TrainingCommands(parts)
        self._models = ModelCommands(parts)
        self._erasing = WipeCommands(parts)
        self._asking = QueryCommands(parts)
        self.settings = SettingsCommands(parts)
        self.pauses = PauseCommands(parts)

    def commands(self) -> dict[str, Handler]:
        """Every command with its handler."""
        training, models, asking = self._training, self._models, self._asking
        return {
            "train": Handler(training.train, "later", resume=training.resume),
            "cancel": Handler(training.cancel),
            "checkpoint": Handler(training.checkpoint, "later"),
            "accept": Handler(training.accept),
            "drift.reset": Handler(training.reset_drift),
            "pause": Handler(self.pauses.pause),
            "resume": Handler(self.pauses.resume),
            "promote": Handler(models.promote),
            "rollback": Handler(models.roll_back),
            "pin": Handler(models.pin),
            "unpin": Handler(models.unpin),
            "evaluate": Handler(models.evaluate, "aside"),
            "export": Handler(models.export, "aside"),
            "label": Handler(self._labelling.label),
            "wipe": Handler(self._erasing.wipe, "aside"),
            "config.get": Handler(self.settings.get, effect=False),
            "config.set": Handler(self.settings.set),
            "logs.level": Handler(self.settings.level),
            "status": Handler(asking.status, effect=False),
            "ping": Handler(asking.ping, effect=False),
            "capabilities": Handler(self._capabilities, effect=False),
            **self._arrivals,
        }

    def _capabilities(self, _: dict[str, Any]) -> dict[str, Any]:
        return self._asking.capabilities(self.commands())

    def check(self, name: str, request: dict[str, Any]) -> None:
        """Compare the fields of a request with what the command takes; ConfigError says what does not fit."""
        check(REQUESTS.get(name, {}), request)

    def answer(self, command: str, payload: bytes, sender: Sender) -> None:
        """Send an answer where the sender wants it."""
        publish, topics = self._parts.session.publish, self._parts.topics
        answered = getattr(sender, "answered", None)  # of one that came by another way than the broker
        if answered is not None:
            answered(payload)
        elif sender.response_topic:
            publish(sender.response_topic, payload, qos=1, correlation=sender.correlation)
        else:
            publish(topics.response(command), payload, qos=1)

    def progress(self, transaction: str, payload: bytes) -> None:
        """Say how far a command is."""
        self._parts.session.publish(self._parts.topics.progress(transaction), payload, qos=0)
