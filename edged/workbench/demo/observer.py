"""What the demo receives from the daemon, and how many predictions were right."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.training.message import Message
from edged.workbench.demo.plant import DemoStream


@dataclass(frozen=True)
class DemoSummary(Message):
    """Counts at the end of the demo, and the accuracy of the adapted and the frozen model."""

    samples: int
    predictions: int
    dropped: int
    duplicated: int
    trainings: int
    swaps: int
    rollbacks: int
    frozen: Mapping[str, float]
    adapted: Mapping[str, float]
    engine: str
    broker: str
    seconds: float
    warnings: tuple[str, ...]


@dataclass
class Score:
    """Predictions of one model by sample: 1 right, 0 wrong, NaN not answered yet."""

    right: NDArray[np.float32]

    def mean(self, start: int, end: int) -> float:
        """Accuracy over the answered samples from `start` to `end`; NaN without one."""
        part = self.right[start:end]
        return float(np.nanmean(part)) if np.isfinite(part).any() else float("nan")


@dataclass
class Observer:
    """Counts the predictions and events that the daemon publishes; `changed` is notified of each."""

    world: DemoStream
    adapted: Score
    answered: int = 0
    twice: int = 0
    version: int = 0
    swaps: int = 0
    rollbacks: int = 0
    trainings: int = 0
    events: list[str] = field(default_factory=list)
    engine: str = ""
    training: bool = False
    failure: str = ""
    online: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def receive(self, topic: str, message: dict[str, Any]) -> None:
        """Record a message of the daemon, by the last level of its topic."""
        with self.changed:
            match topic.rpartition("/")[2]:
                case "predictions":
                    self._record_prediction(message)
                case "events":
                    self._record_event(message)
                case "status":
                    self.online = self.online or message["state"] == "online"
            self.changed.notify_all()

    def _record_prediction(self, message: dict[str, Any]) -> None:
        row = int(message["id"])
        if np.isfinite(self.adapted.right[row]):
            self.twice += 1
            return
        self.adapted.right[row] = message["label"] == self.world.classes[self.world.y[row]]
        self.answered += 1

    def _record_event(self, message: dict[str, Any]) -> None:
        kind = message["event"]
        if kind == "training_started":
            self.training = True
        elif kind == "training_finished":
            self.training = False
            if message["outcome"] == "done":
                self.trainings += 1
                self.engine = message["engine"]
            elif message["outcome"] == "failed":
                self.failure = message["error"]
        elif kind == "model_promoted":
            self.swaps, self.version = self.swaps + 1, message["version"]
            self.events.append(f"model {message['version']} promoted: {message['reasons'][0]}")
        elif kind == "model_rolled_back":
            self.rollbacks, self.version = self.rollbacks + 1, message["to"]
            self.events.append(f"rolled back to model {message['to']}: {message['reason']}")
        elif kind == "candidate_rejected":
            self.events.append(f"candidate rejected: {message['reasons'][0]}")

    def pop_events(self) -> list[str]:
        """Return the events since the last call."""
        with self.changed:
            events, self.events = self.events, []
        return events
