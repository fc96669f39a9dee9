"""Trainer processes on a state directory of their own, and what they said."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from edged.clock import VirtualClock
from edged.device.events import Events
from edged.device.learning.scheduler import TrainingScheduler
from edged.device.learning.trainer_client import TrainerClient
from edged.domain.training.message import Message
from edged.domain.training.trainer_messages import CheckpointWritten
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog
from tests.constants import configured
from tests.device.learning_rig import CLASSIFY, batch, task
from tests.device.partners import Recorder

if TYPE_CHECKING:
    from edged.device.learning.conditions import ConditionsReader
    from edged.device.serving.predictor import Predictor
    from edged.domain.stream.schema import Schema
    from edged.domain.training.guards import Conditions
    from edged.storage.models.bundles import Bundle


class Plant:
    """A state directory with samples in it."""

    def __init__(self, folder: Path, bundle: Bundle, samples: int = 300, **training: Any) -> None:
        self.config = configured(
            {
                "device": {"id": "d"},
                "stream": {"features": 5, "classes": ["low", "mid", "high"]},
                "model": {"bundle": bundle.path},
                "storage": {"dir": folder},
                "training": {
                    "engine": "portable",
                    "learning_rate": 0.01,
                    "resident": 20,
                    **training,
                },
            }
        )
        folder.mkdir(exist_ok=True)
        self.log = SampleLog.open(folder / "samples.db", CLASSIFY, holdout=0.1)
        self.feed(samples)

    def feed(self, n: int, seed: int = 0) -> None:
        """More labelled samples."""
        self.log.commit(batch(self.log, *task(n, seed)))

    def process(self) -> TrainerClient:
        """A trainer on it."""
        return TrainerClient(self.config)


class Answering:
    """What a scheduler asks of the predictor: the share of wrong answers, and about its classes."""

    knows_one_class = False

    def __init__(self, error: float | None, schema: Schema) -> None:
        self._error, self.schema = error, schema

    def live_error(self) -> float | None:
        return self._error


class Constant:
    """Conditions that never change."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions

    def read(self, written: int) -> Conditions:
        del written
        return self._conditions


class Desk:
    """A learner with its registry, on a clock that stands still."""

    def __init__(
        self,
        plant: Plant,
        consumed: int = 0,
        bundle: str = "one",
        error: float | None = None,
        conditions: Conditions | None = None,
    ) -> None:
        self.clock = VirtualClock(1.7e9)
        self.registry = Registry.open(plant.config.storage.dir)
        self.heard = Recorder()
        self.events = Events(self.heard)
        if consumed:
            self.registry.set_value("consumed", consumed)
        self.scheduler = TrainingScheduler(
            plant.config,
            registry=self.registry,
            samples=plant.log,
            client=TrainerClient(plant.config),
            predictor=cast("Predictor", Answering(error, plant.config.stream.to_schema())),
            bundle=bundle,
            events=self.events,
            clock=self.clock,
            conditions=None if conditions is None else cast("ConditionsReader", Constant(conditions)),
        )

    @property
    def told(self) -> list[tuple[str, Mapping[str, Any]]]:
        """All events."""
        return self.heard.events

    def wait(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.clock.advance_to(self.clock.now() + seconds)

    def outcomes(self) -> list[str | None]:
        """Of all runs, oldest first."""
        return [run.outcome for run in reversed(self.registry.runs())]


class Ear:
    """Keeps what a trainer says, and acts once when it hears a message of a kind."""

    def __init__(
        self,
        kind: type[Message] = Message,
        action: Callable[[], object] | None = None,
        least_step: int = 1,
    ) -> None:
        self.heard: list[Message] = []
        self._kind, self._action, self._least = kind, action, least_step

    def __call__(self, message: Message) -> None:
        self.heard.append(message)
        wanted = isinstance(message, self._kind) and getattr(message, "step", self._least) >= self._least
        if wanted and self._action is not None:
            action, self._action = self._action, None
            action()

    def kinds(self) -> set[type[Message]]:
        """The kinds of messages so far."""
        return {type(message) for message in self.heard}

    def checkpoints(self) -> list[int]:
        """Steps of the checkpoints so far."""
        return [message.step for message in self.heard if isinstance(message, CheckpointWritten)]


def signalled(process: TrainerClient, number: int) -> Callable[[], None]:
    """An action that sends a signal to the trainer."""

    def send() -> None:
        assert process.pid is not None
        os.kill(process.pid, number)

    return send
