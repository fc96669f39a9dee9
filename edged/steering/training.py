"""Commands about training: begin a run, take what alarms are about for normal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from edged.domain.anomaly import Anomalies
    from edged.domain.tasks import Task
    from edged.learning import Learning
    from edged.selfreport import SelfReport

OPTIONS = {"steps": int, "learning_rate": float}


class TrainingCommands:
    """`train` and `accept`; `anomalies` is None where the stream has none."""

    def __init__(self, learning: Learning, selfreport: SelfReport, anomalies: Anomalies | None) -> None:
        self._learning = learning
        self._selfreport = selfreport
        self._anomalies = anomalies

    def train(self, request: dict[str, Any], task: Task) -> dict[str, Any]:
        """Begin a run as soon as the present one has ended; the task ends with the run."""
        self._learning.command(_options(request), task)
        return {"new_samples": self._selfreport.new_labelled()}

    def resume(self, request: dict[str, Any], task: Task) -> None:
        """Go on with a run that the end of the daemon cut off."""
        self._learning.adopt(_options(request), task)

    def accept(self, request: dict[str, Any]) -> dict[str, Any]:
        """What an alarm is about is normal from now on, and learned from."""
        key = request.get("key")
        if key is not None and not isinstance(key, str):
            raise ConfigError(f"{key!r} is no key", where="key")
        accepted = 0 if self._anomalies is None else self._anomalies.accept(key)
        if accepted == 0:
            raise RefusedError(
                "no alarm stands", where=key or "", remedy="metrics name the keys: anomaly.standing"
            )
        self._learning.wake()
        return {"accepted": accepted}


def _options(request: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in request.items():
        kind = OPTIONS.get(name)
        if kind is None:
            raise ConfigError(f"unknown option; known: {', '.join(OPTIONS)}", where=name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1_000_000:
            raise ConfigError(f"{value!r} is no positive number", where=name)
        options[name] = kind(value)
    return options
