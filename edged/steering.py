"""What commands over MQTT do on this device, and where their answers go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.learning import Learning
    from edged.loop.succession import Succession
    from edged.mqtt.delivery import Delivery
    from edged.mqtt.topics import Topics
    from edged.selfreport import SelfReport

TRAIN_OPTIONS = {"steps": int, "learning_rate": float}


class Steering:
    """The handlers of `request/<command>`.

    Parameters
    ----------
    learning, succession, selfreport
        The parts that carry commands out.
    publish_states
        Called after a command that changed something.
    publish
        Sends one message over the session.
    topics
        Where answers go to a sender without an MQTT 5 response topic.
    """

    def __init__(
        self,
        *,
        learning: Learning,
        succession: Succession,
        selfreport: SelfReport,
        publish_states: Callable[[], None],
        publish: Callable[..., bool],
        topics: Topics,
    ) -> None:
        self._learning = learning
        self._succession = succession
        self._selfreport = selfreport
        self._publish_states = publish_states
        self._publish = publish
        self._topics = topics

    def commands(self) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        """Every command with its handler."""
        return {"train": self._train, "rollback": self._roll_back, "status": self._status}

    def answer(self, command: str, payload: bytes, delivery: Delivery) -> None:
        """Send an answer where the sender wants it."""
        if delivery.response_topic:
            self._publish(delivery.response_topic, payload, qos=1, correlation=delivery.correlation)
        else:
            self._publish(self._topics.response(command), payload, qos=1)

    def _train(self, request: dict[str, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for name, value in request.items():
            if name == "transaction":
                continue
            kind = TRAIN_OPTIONS.get(name)
            if kind is None:
                raise ConfigError(f"unknown option; known: {', '.join(TRAIN_OPTIONS)}", where=name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1_000_000:
                raise ConfigError(f"{value!r} is no positive number", where=name)
            options[name] = kind(value)
        self._learning.command(options)
        return {"state": "accepted", "new_samples": self._selfreport.new_labelled()}

    def _roll_back(self, request: dict[str, Any]) -> dict[str, Any]:
        to = request.get("version")
        if to is not None and (isinstance(to, bool) or not isinstance(to, int)):
            raise ConfigError(f"{to!r} is no version number", where="version")
        change = self._succession.roll_back("command", to)
        self._publish_states()
        return change

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return self._selfreport.status()
