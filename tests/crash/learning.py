"""Commands that train, from the request to the answer, on the daemon's own parts and one thread.

The trainer's part is played: what it leaves on the disk is the same, its steps are only counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from edged.clock import VirtualClock
from edged.config import CommandsConfig
from edged.device.commands.answers import CommandAnswers
from edged.device.commands.dispatcher import CommandDispatcher
from edged.device.events import Events
from edged.device.learning.worker import TrainingWorker
from edged.device.pipeline import Host, Pipeline
from edged.domain.commands.tasks import Handler, RunningCommands
from edged.domain.training.training_run import RunOptions, RunResult
from edged.engines.inference import InferenceReader
from edged.mqtt.client.message import ReceivedMessage
from edged.storage.journal.audit_log import AuditLog
from edged.storage.models.checkpoints import Checkpoints
from edged.storage.models.registry import Registry
from tests.crash.rig import opened, tell
from tests.device.learning_rig import batch
from tests.device.linear import GOOD, candidate, classes, inputs

if TYPE_CHECKING:
    from edged.device.learning.trainer_client import TrainerClient
    from edged.device.startup.open_state import OpenState
    from edged.domain.commands.rules import Answer
    from edged.domain.commands.tasks import CommandProgress, Sender, Task
    from edged.domain.training.trainer_messages import RunRequest

CHUNK = 2  # steps between two checkpoints
SECTIONS: dict[str, Any] = {
    "gate": {"min_gain": -1.0, "max_regret": 1.0, "min_holdout": 1, "holdout": 0.5, "latency": 10.0},
    "training": {"every": None, "new_labels": 0, "max_write_rate": None},
}
FRESH: dict[str, Any] = {"consumed": 0, "plan": None, "finished": None, "step": 0, "total_steps": 0}


@dataclass
class PlayedTrainer:
    """What a trainer process does to the state directory; `forgets` that a run it has finished exists."""

    state: Path
    forgets: bool = False
    written = 0

    def turn(self, trigger: str = "command") -> AbstractContextManager[None]:
        """Nobody else waits for the trainer."""
        return nullcontext()

    def run(self, order: RunRequest, _: object) -> RunResult:
        """Carry out a run, or export the candidate of the finished one again."""
        store = Checkpoints(self.state / "checkpoints", 2)
        newest = store.latest()
        learner = dict(FRESH if newest is None else newest.state["learner"])
        if order.unjudged and learner["finished"]:
            return self._result(order, learner["finished"], newest.number if newest else None)
        if not (learner["plan"] and order.resumes):
            learner |= {"plan": {"steps": order.options.steps}, "step": 0, "finished": None}
        learner["plan"] |= {"run": order.run}
        while learner["step"] < learner["plan"]["steps"]:
            self._publish(store, learner)
            learner |= {name: learner[name] + CHUNK for name in ("step", "total_steps")}
        finished = learner["plan"]
        learner |= {"plan": None, "finished": None if self.forgets else finished, "step": 0}
        return self._result(order, finished, self._publish(store, learner))

    def _publish(self, store: Checkpoints, learner: dict[str, Any]) -> int:
        return store.publish(store.stage(), {"learner": learner}, {"memory_ids": np.zeros(0, np.int64)})

    def _result(self, order: RunRequest, plan: dict[str, Any], generation: int | None) -> RunResult:
        folder = candidate(self.state / "candidates", order.run, GOOD).folder
        return RunResult(
            order.run, order.trigger, generation, folder, 1, 1, 1, 0, 0, (), "one",
            plan["steps"], 0, None, None, "played", 0.0,
        )  # fmt: skip


class ToldAnswers(CommandAnswers):
    """Tells somebody else of each answer."""

    def __init__(self, running: RunningCommands, journal: Registry, clock: VirtualClock) -> None:
        wire: Any = None  # nothing is published
        super().__init__(wire, wire, running, journal=journal, clock=clock)

    def publish(self, name: str, answer: Answer, sender: Sender) -> None:
        """`accepted <transaction>`, or `answered <transaction> <its result>`."""
        del name, sender
        if answer["state"] == "accepted":
            tell("accepted", answer["transaction"])
        else:
            data: Any = answer.get("data", {})
            told = {"state": answer["state"], "steps": data.get("steps"), "run": data.get("run")}
            tell("answered", answer["transaction"], json.dumps(told, separators=(",", ":")))

    def publish_progress(self, progress: CommandProgress) -> None:
        """Nobody relies on it."""

    def acknowledge(self, delivery: Any) -> None:
        """The broker may forget the request."""


class Desk:
    """The learning side of a daemon that has just been started on what is there."""

    def __init__(self, root: Path, bundle: Path, *, forgets: bool = False) -> None:
        self.state: OpenState = opened(root, bundle, **SECTIONS)
        state, clock, events = self.state, VirtualClock(1000.0), Events()
        self.folder = state.config.storage.dir
        trainer = cast("TrainerClient", PlayedTrainer(self.folder, forgets))
        host = Host(events, clock, InferenceReader(), trainer)
        self.pipeline = pipeline = Pipeline(
            state.config, state.bundle, state.registry, state.samples, state.reader, host
        )
        pipeline.resume(state.unfinished)
        self.worker = TrainingWorker(
            scheduler=pipeline.scheduler, rollout=pipeline.rollout,
            exclusion=pipeline.exclusion, samples=state.samples, registry=state.registry,
        )  # fmt: skip
        running = RunningCommands()
        self.dispatcher = CommandDispatcher(
            {"train": Handler(self._train, "later", resume=self._resume)},
            config=CommandsConfig(), clock=clock, journal=state.registry,
            answers=ToldAnswers(running, state.registry, clock), authority=None, running=running,
        )  # fmt: skip
        self.audit = AuditLog(self.folder, max_bytes=3000)

    def _train(self, request: dict[str, Any], task: Task) -> dict[str, Any]:
        self.worker.command(RunOptions(steps=int(request["steps"])), task)
        return {}

    def _resume(self, request: Mapping[str, Any], task: Task) -> None:
        self.worker.adopt(RunOptions(steps=int(request["steps"])), task)

    def feed(self, count: int) -> None:
        """Labelled samples, some of which the gate judges by."""
        x = inputs(count)
        self.state.samples.commit(batch(self.state.samples, x, classes(x)))

    def ask(self, name: str, steps: int) -> None:
        """A command comes."""
        payload = json.dumps({"transaction": name, "steps": steps}).encode()
        self.dispatcher.execute(
            ReceivedMessage("edged/rig/request/train", payload, 1, 1, False, False, 1, 0.0)
        )

    def work(self) -> None:
        """All runs that are due."""
        while (trigger := self.pipeline.scheduler.due()) is not None:
            self.worker._run(trigger)  # noqa: SLF001  what its thread does
            self.audit.drain(self.state.registry)

    def close(self) -> None:
        """As after a crash: nothing is noted."""
        self.audit.drain(self.state.registry)
        self.state.close(how=None)
