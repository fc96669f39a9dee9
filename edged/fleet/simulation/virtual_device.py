"""A virtual device: the pipeline of a real one, with its rows as samples and a trainer in this process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.clock import SystemClock
from edged.device.admin.stopped_device import model_reader
from edged.device.events import Events
from edged.device.fleet_member.round_executor import RoundExecutor
from edged.device.pipeline import Host, Pipeline
from edged.device.startup.bootstrap import open_samples
from edged.domain.federated.personal_layers import fitting, only
from edged.domain.federated.round_orders import KeptUpdate
from edged.domain.training.trainer_messages import Setup
from edged.domain.training.training_run import RunOptions
from edged.fleet.simulation.attacks import HarmfulTrainer
from edged.fleet.simulation.local_trainer import LocalTrainer, ReportingControl
from edged.fleet.simulation.partition import own_and_kept
from edged.mqtt.update_encoding import fleet_model
from edged.storage.models.active_bundle import ActiveBundle
from edged.storage.models.installed_bundles import InstalledBundles
from edged.storage.models.registry import Registry
from edged.storage.models.sent_updates import PERSONAL, ROUNDS, SentUpdates
from edged.trainer.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edged.config import Config
    from edged.domain.federated.messages import Quality, RoundAnnouncement
    from edged.domain.federated.round_orders import FleetModelResult
    from edged.domain.federated.settings import RoundSettings
    from edged.fleet.simulation.attacks import Attack
    from edged.fleet.simulation.shared import SharedSetup

    Weights = Mapping[str, NDArray[np.float32]]

LARGEST_MODEL = 1 << 30


@dataclass
class ModelReport:
    """What a device found of the fleet's model of a round, on rows that nothing was chosen by."""

    model: str
    share: float | None
    alone: Quality
    mixed: Quality


@dataclass
class DeviceLog:
    """What a device has done, for the report."""

    models: list[ModelReport] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)
    """Bytes of its messages, by round, sent again or not."""


class VirtualDevice(RoundExecutor):
    """The `RoundWork` of a simulated device; between rounds it learns from its own rows, as devices do.

    `folder` is its state directory, `bench` what all share, `rows` `(n,)` are its rows of the recording,
    `seed` is of what it learns, and `attack` is what it does to its updates, where it does harm.

    Attributes
    ----------
    learned, kept
        Rows that it trains on, and those for the report alone. What it judges models by is neither.
    fleet
        How it takes part in the fleet.
    log
        What it has done.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        bench: SharedSetup,
        rows: NDArray[np.int64],
        *,
        seed: int,
        attack: Attack | None = None,
    ) -> None:
        self.name, self.log, self.attack = name, DeviceLog(), attack
        self.folder, self._bench, self._sent = folder, bench, SentUpdates(folder, KeptUpdate, ROUNDS)
        config, self.fleet = bench.configuration(name, folder, seed)
        with ExitStack() as stack:
            registry = Registry.open(folder)
            stack.callback(registry.close)
            samples = open_samples(config)
            stack.callback(samples.close)
            own, self.kept = own_and_kept(rows)
            samples.commit(bench.batch(own), [])
            held = samples.holdout_window(len(own)).offsets
            self.learned = own[~np.isin(np.arange(1, len(own) + 1), held)]
            client = _trainer(config, seed, attack)
            stack.callback(client.close)
            host = Host(Events(), SystemClock(), model_reader(config), client)
            pipeline = Pipeline(config, bench.bundle, registry, samples, samples, host)
            self._stack = stack.pop_all()
        bundles = ActiveBundle(bench.bundle, InstalledBundles(folder), registry, ())
        super().__init__(pipeline, self.fleet, bundles)

    def evaluate(
        self, announced: RoundAnnouncement, model: Path, standing: tuple[str, Path] | None
    ) -> FleetModelResult:
        """Do with the fleet's model what a device does, note what that gives, and learn on by itself."""
        result = super().evaluate(announced, model, standing)
        shared = self._bench.evaluate(self._weights(model, announced), self.folder / "asked.onnx", self.kept)
        mixed = self._bench.judge(self._pipeline.predictor.champion.model, self.kept)
        self.log.models.append(ModelReport(announced.base.hash, result.share, shared[0], mixed[0]))
        self._learn(announced.config)
        return result

    def close(self) -> None:
        """Close its trainer, registry and sample log."""
        self._stack.close()

    def _weights(self, model: Path, announced: RoundAnnouncement) -> Weights:
        """The fleet's model with the personal layers that this device has sent an update beside."""
        patterns, sent = announced.config.personal, self._sent.newest()
        personal = {} if sent is None else only(sent.held(PERSONAL), patterns)
        shared = fleet_model(model, announced.base.hash, LARGEST_MODEL)
        return fitting(shared, {**self._bench.initial(), **personal}, self._bench.bundle.trainable, patterns)

    def _learn(self, config: RoundSettings) -> None:
        options = RunOptions(steps=config.steps, epochs=config.epochs, learning_rate=config.learning_rate)
        result = self._scheduler.train("command", options)
        if result is not None:
            _, served = self._pipeline.rollout.consider(result.to_candidate())
            if served is not None:
                self._pipeline.record_champion(served.version)


def _trainer(config: Config, seed: int, attack: Attack | None) -> LocalTrainer:
    control, setup = ReportingControl(), Setup("", durable=False)
    if attack is None:
        return LocalTrainer(config, control, Trainer(config, control, setup, seed=seed))
    return LocalTrainer(config, control, HarmfulTrainer(attack, config, control, setup, seed=seed))
