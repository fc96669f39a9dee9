"""Commands about training: begin a run, end it, write it down; take what alarms are about for normal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged.domain.training.training_run import RunOptions
from edged.errors import RefusedError
from edged.storage.models.checkpoints import Checkpoints

if TYPE_CHECKING:
    from edged.device.commands.context import Parts
    from edged.domain.commands.tasks import Task


class TrainingCommands:
    """`train`, `cancel`, `checkpoint`, `accept` and `drift.reset`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def train(self, request: dict[str, Any], task: Task) -> dict[str, Any]:
        """Begin a run as soon as the present one has ended; the task ends with the run.

        What was delivered until now is committed before, so that the run finds it.
        """
        self._parts.ingest.settled()
        self._parts.learning.command(_options(request), task)
        return {"new_samples": self._parts.selfreport.new_labelled()}

    def resume(self, request: dict[str, Any], task: Task) -> None:
        """Go on with a run that the end of the daemon cut off."""
        self._parts.learning.adopt(_options(request), task)

    def cancel(self, request: dict[str, Any]) -> dict[str, Any]:
        """End the present run, or the command with the transaction `target`."""
        learning, target = self._parts.learning, request.get("target")
        if target is None:
            return {"cancelled": "train", "run": learning.cancel()}
        task = next((task for task in self._parts.tasks() if task.transaction == target), None)
        if task is None or task.name == "cancel":
            raise RefusedError("no such command is under way", where="target", remedy="it may have ended")
        if task.name == "train":
            return {"cancelled": "train", "run": learning.cancel(task)}
        task.cancel()
        return {"cancelled": task.name, "run": None}

    def checkpoint(self, _: dict[str, Any], task: Task) -> dict[str, Any]:
        """Have the present run written down; what earlier ones came to is already."""
        if not self._parts.learning.want_checkpoint(task):
            config = self._parts.config
            folder = config.storage.dir / "checkpoints"
            numbers = Checkpoints(folder, config.training.keep_checkpoints).numbers()
            self._parts.learning.keep()
            task.done({"generation": max(numbers, default=None), "step": None})
        return {}

    def accept(self, request: dict[str, Any]) -> dict[str, Any]:
        """What an alarm is about is normal from now on, and learned from."""
        key, anomalies = request.get("key"), self._parts.server.anomalies
        self._parts.ingest.settled()  # what is not stored yet could not come back
        accepted = 0 if anomalies is None else anomalies.accept(key)
        if accepted == 0:
            raise RefusedError(
                "no alarm stands", where=key or "", remedy="metrics name the keys: anomaly.standing"
            )
        self._parts.learning.wake()
        return {"accepted": accepted}

    def reset_drift(self, _: dict[str, Any]) -> dict[str, Any]:
        """The detectors take the present for normal."""
        parts, triggers = self._parts, self._parts.learner.triggers
        signals = parts.server.drift.signals
        parts.server.reset_drift()
        triggers.drifted = triggers.warned = triggers.fallen = False
        parts.learning.keep()
        parts.publish_states()
        return {"forgotten": signals}


def _options(request: dict[str, Any]) -> RunOptions:
    """What the trainer calls it."""
    options = {"base" if name == "from" else name: value for name, value in request.items()}
    if "steps" in options:
        options["steps"] = int(options["steps"])
    return RunOptions.from_json(options)
