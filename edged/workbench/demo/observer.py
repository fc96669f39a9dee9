"""What the demo hears from the daemon, and how many answers were right."""

from __future__ import annotations

import collections
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.errors import TrainingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.mqtt.client.message import ReceivedMessage
    from edged.workbench.demo.plant import DemoStream


@dataclass
class Score:
    """Answers of one model, by sample."""

    right: NDArray[np.float32]

    def windows(self, start: int, end: int, size: int) -> list[float]:
        """Accuracy of each full window of answered samples from `start` to `end`."""
        return [self.mean(i, i + size) for i in range(start, end - size + 1, size)]

    def mean(self, start: int, end: int) -> float:
        """Accuracy over all answered samples."""
        part = self.right[start:end]
        return float(np.nanmean(part)) if np.isfinite(part).any() else float("nan")


@dataclass
class Observer:
    """Listens to what the daemon publishes, as any MQTT client could."""

    world: DemoStream
    adapted: Score
    answered: int = 0
    twice: int = 0
    swaps: list[tuple[int, int]] = field(default_factory=list)
    rollbacks: int = 0
    trainings: int = 0
    events: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=50))
    engine: str = ""
    training: str = "idle"
    failure: str = ""
    step: tuple[int, int] | None = None
    online: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def on_prediction(self, delivery: ReceivedMessage) -> None:
        """One prediction: joined with the truth by the sample's id."""
        message = json.loads(delivery.payload)
        row = int(message["id"])
        if np.isfinite(self.adapted.right[row]):
            self.twice += 1
            return
        self.adapted.right[row] = message["label"] == self.world.classes[self.world.y[row]]
        with self.changed:
            self.answered += 1
            self.changed.notify_all()

    def on_event(self, delivery: ReceivedMessage) -> None:
        """Count trainings, promotions and rollbacks."""
        message = json.loads(delivery.payload)
        with self.changed:
            self._record_event(message)
            self.changed.notify_all()

    def _record_event(self, message: dict[str, Any]) -> None:
        kind = message["event"]
        if kind == "training_started":
            self.training = f"run {message['run']} ({message['trigger']})"
        elif kind == "training_finished":
            self.training = "idle"
            if message["outcome"] == "done":
                self.trainings += 1
                self.engine = message["engine"]
            elif message["outcome"] == "failed":
                self.failure = message["error"]
                self.events.append(f"training failed: {message['error']}")
        elif kind == "model_promoted":
            self.swaps.append((self.answered, message["version"]))
            self.events.append(f"model {message['version']} promoted: {message['reasons'][0]}")
        elif kind == "model_rolled_back":
            self.rollbacks += 1
            self.events.append(f"rolled back to model {message['to']}: {message['reason']}")
        elif kind == "candidate_rejected":
            self.events.append(f"candidate refused: {message['reasons'][0]}")

    def on_status(self, delivery: ReceivedMessage) -> None:
        """Birth and death of the daemon."""
        if json.loads(delivery.payload)["state"] == "online":
            self.online.set()

    def on_metrics(self, delivery: ReceivedMessage) -> None:
        """How far the present training run is."""
        running = json.loads(delivery.payload)["training"]["running"]
        with self.changed:
            self.step = None if running is None else (running["run"], running["step"])
            self.changed.notify_all()

    def wait(self, condition: Any, seconds: float, what: str) -> None:
        """Wait until `condition()` holds, at most `seconds` after a training run made its last step."""
        with self.changed:
            step, until = self.step, time.monotonic() + seconds
            while not (condition() or self.failure):
                if not self.changed.wait(until - time.monotonic()):
                    raise TrainingError(f"{what} did not happen within {seconds:.0f} s", where="demo")
                if self.step != step:
                    step, until = self.step, time.monotonic() + seconds
        if self.failure:
            raise TrainingError(self.failure, where="demo")
