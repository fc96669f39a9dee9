"""Commands about training runs, anomaly alarms and the drift baseline."""

from __future__ import annotations

from edged.device.events import Events
from edged.device.live_pipeline import LivePipeline
from edged.device.reporting.status import StatusCollector
from edged.domain.commands.rules import Answer, Request
from edged.domain.commands.tasks import RunningCommands, Task
from edged.domain.training.training_run import RunOptions
from edged.errors import RefusedError
from edged.storage.models.checkpoints import Checkpoints


class TrainingCommands:
    """`train`, `cancel`, `checkpoint`, `accept` and `drift.reset`: control training."""

    def __init__(
        self, pipeline: LivePipeline, *, status: StatusCollector, running: RunningCommands, events: Events
    ) -> None:
        self._pipeline = pipeline
        self._status = status
        self._running = running
        self._events = events

    def train(self, request: Request, task: Task) -> Answer:
        """Start a run as soon as the present run has ended; the task ends with the run.

        Samples received so far are committed first, so that the run can read them.
        """
        self._pipeline.ingestor.flush()
        self._pipeline.worker.command(_run_options(request), task)
        return {"new_samples": self._status.new_labelled()}

    def resume(self, request: Request, task: Task) -> None:
        """Resume a run that was interrupted when the daemon ended."""
        self._pipeline.worker.adopt(_run_options(request), task)

    def cancel(self, request: Request) -> Answer:
        """Cancel the present run, or the command with the transaction `target`."""
        worker, target = self._pipeline.worker, request.get("target")
        if target is None:
            return {"cancelled": "train", "run": worker.cancel()}
        task = self._running.find(target)
        if task is None or task.name == "cancel":
            raise RefusedError("no such command is under way", where="target", remedy="it may have ended")
        if task.name == "train":
            return {"cancelled": "train", "run": worker.cancel(task)}
        task.cancelled = True
        return {"cancelled": task.name, "run": None}

    def checkpoint(self, _: Request, task: Task) -> Answer:
        """Store a checkpoint of the present run; without a run, report the newest checkpoint."""
        if not self._pipeline.worker.want_checkpoint(task):
            config = self._pipeline.config
            folder = config.storage.dir / "checkpoints"
            numbers = Checkpoints(folder).numbers()
            self._pipeline.worker.store_state()
            task.done({"generation": max(numbers, default=None), "step": None})
        return {}

    def accept(self, request: Request) -> Answer:
        """Mark the samples of an alarm as normal, end the alarm and learn from the samples."""
        key, anomalies = request.get("key"), self._pipeline.predictor.anomalies
        self._pipeline.ingestor.flush()  # a sample that is not stored yet could not be learned from
        accepted = 0 if anomalies is None else anomalies.accept(key)
        if accepted == 0:
            raise RefusedError(
                "no alarm stands", where=key or "", remedy="metrics name the keys: anomaly.standing"
            )
        self._pipeline.worker.wake()
        return {"accepted": accepted}

    def reset_drift(self, _: Request) -> Answer:
        """Use current data as the drift baseline and drop pending drift triggers."""
        predictor, triggers = self._pipeline.predictor, self._pipeline.scheduler.triggers
        signals = predictor.drift.signals
        predictor.reset_drift()
        triggers.drifted = triggers.warned = triggers.fallen = False
        self._pipeline.worker.store_state()
        self._events.states_changed()
        return {"forgotten": signals}


def _run_options(request: Request) -> RunOptions:
    """Return the fields of a request as the options of the trainer."""
    options = {"base" if name == "from" else name: value for name, value in request.items()}
    if "steps" in options:
        options["steps"] = int(options["steps"])
    return RunOptions.from_json(options)
