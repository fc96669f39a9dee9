"""The two threads of learning: what cannot wait does not wait for a training run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edged.config import GateConfig, ServingConfig
from edged.device.events import Events
from edged.device.learning.changes import AnomalyExclusion
from edged.device.learning.worker import TrainingWorker
from edged.device.promotion.rollout import Rollout
from edged.device.serving.predictor import Predictor
from edged.errors import StorageError
from tests.device.gates import Gate
from tests.device.linear import BAD, GOOD, SCHEMA
from tests.device.partners import Recorder
from tests.device.trainers import Desk, Plant, signalled
from tests.running_device import wait_until


class House(Recorder):
    """A learner, a gate and a server, and the threads that bring them together."""

    def __init__(self, folder: Path, bundle: Any) -> None:
        super().__init__()
        steps = {"steps": 100_000, "max_steps": 100_000, "checkpoint_every": 100}
        self.plant = Plant(folder / "plant", bundle, **steps)
        self.desk = Desk(self.plant)
        (folder / "gate").mkdir()
        self.gate = Gate(folder / "gate", GOOD)
        self.states = 0
        self.predictor = Predictor(ServingConfig(), GateConfig(), SCHEMA, self.gate.champion)
        news = Events(self)
        scheduler = self.desk.scheduler
        self.rollout = Rollout(self.gate.evaluator, self.gate.models, self.predictor, news)
        self.learning = TrainingWorker(
            scheduler=scheduler, rollout=self.rollout, samples=self.plant.log,
            registry=self.desk.registry,
            exclusion=AnomalyExclusion(None, self.plant.log),
        )  # fmt: skip

    def states_changed(self) -> None:
        self.states += 1

    def close(self) -> None:
        self.learning.stop()
        self.desk.scheduler.client.cancel()
        self.learning.join(20.0)
        self.desk.scheduler.client.close()
        self.gate.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics
    from tests.building import build

    bundle = build(
        mlp(5, 3, (16,)), tmp_path / "bundle", loss="cross_entropy", standardise=Statistics.identity(5)
    )
    with closing(House(tmp_path, bundle)) as made:
        yield made


def test_a_rollback_does_not_wait_for_a_training_run(house: House) -> None:
    model = house.gate.crowned(BAD, 1)
    house.predictor.swap(model)
    scheduler = house.desk.scheduler
    house.learning.start()
    house.learning.wake()
    wait_until(lambda: scheduler.progress is not None and scheduler.progress.step > 0)
    signalled(scheduler.client, signal.SIGSTOP)()  # a run that takes for ever
    done = threading.Event()

    def change() -> None:
        house.rollout.probation_ended(model.version, passed=False)
        done.set()

    house.learning.defer(change)
    assert done.wait(5.0), "promised is one second; this machine may be busy"
    assert scheduler.progress is not None, "the run still goes on"
    assert house.predictor.champion.version == house.gate.registry.champion() == 1
    wait_until(lambda: house.states > 0)
    signalled(scheduler.client, signal.SIGCONT)()


def test_a_rollback_that_the_disk_refuses_is_served_at_once_and_durable_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edged.device.learning.changes.IDLE_SECONDS", 0.02)
    model = house.gate.crowned(BAD, 1)
    house.predictor.swap(model)
    registry, refused = house.gate.registry, threading.Event()
    move = registry.set_champion

    def refuse(*_: Any, **__: Any) -> None:
        refused.set()
        raise StorageError("publishing failed: No space left on device", where="models/champion")

    monkeypatch.setattr(registry, "set_champion", refuse)
    house.desk.scheduler.paused = True
    house.learning.start()
    house.learning.defer(lambda: house.rollout.probation_ended(model.version, passed=False))
    wait_until(refused.is_set)
    assert house.predictor.champion.version == 1
    assert [name for name, _ in house.events] == ["model_rolled_back"]
    assert registry.champion() == model.version
    monkeypatch.setattr(registry, "set_champion", move)
    wait_until(lambda: registry.champion() == 1)
    assert registry.get(model.version).status == "rolled_back"
    assert [name for name, _ in house.events] == ["model_rolled_back"], "it is told once"
