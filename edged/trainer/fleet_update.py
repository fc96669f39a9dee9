"""Rounds of a fleet in the trainer process: from the announcement to an update that is kept to be sent."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.federated.round_orders import KeptUpdate, RoundResult
from edged.errors import RefusedError
from edged.mqtt import update_encoding
from edged.mqtt.update_encoding import fleet_model
from edged.storage.models.sent_updates import MOVED, PERSONAL, RESIDUAL, ROUNDS, SentUpdates
from edged.trainer.fleet_training import CarriedState, RoundContribution
from edged.trainer.quality import holdout_rows, quality

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.federated.messages import Quality, RoundAnnouncement
    from edged.domain.federated.round_orders import TrainRound
    from edged.domain.protocols import Engine, RoundData
    from edged.domain.stream.sample import Window
    from edged.storage.samples.log import SampleLog
    from edged.trainer.batches import BatchSampler
    from edged.trainer.fleet_training import RoundTrainer
    from edged.trainer.foreign_weights import WeightImporter
    from edged.trainer.learner import Learner
    from edged.trainer.task import LearningTask


class LearnerData:
    """Samples and model of this device for rounds, see `RoundData`."""

    def __init__(
        self,
        task: LearningTask,
        learner: Learner,
        samples: SampleLog,
        sampler: BatchSampler,
        importer: WeightImporter,
    ) -> None:
        self._task, self._learner, self._samples, self._sampler = task, learner, samples, sampler
        self._importer = importer

    def rows(self) -> Window:
        """Read the newest samples and the remembered ones, each once."""
        return self._sampler.all_rows(self._learner.state)

    def measure(self, engine: Engine) -> Quality | None:
        """Evaluate the engine's present weights on the device's holdout; None without one."""
        return quality(engine, holdout_rows(self._samples, self._task), self._task)

    def parameters(self) -> Mapping[str, NDArray[np.float32]]:
        """Return all parameters of the model that is served."""
        return self._importer.own()

    def last_seq(self) -> int:
        """Newest position in label order."""
        return self._samples.last_seq()


class FleetUpdateTrainer:
    """Trains in a round of the fleet, and stores the update that is to be sent.

    `device` is the device's name, `max_bytes` the cap of the fleet's model when it is unpacked. With a `seed`
    rounds draw what a simulation can draw again; without one nobody can know it.
    """

    def __init__(
        self,
        device: str,
        state: Path,
        trainer: RoundTrainer,
        data: RoundData,
        max_bytes: int,
        *,
        seed: int | None = None,
    ) -> None:
        self._device, self._trainer, self._data, self._max_bytes = device, trainer, data, max_bytes
        self._kept = SentUpdates(state, KeptUpdate, ROUNDS)
        self._seed = seed

    def contribute(self, order: TrainRound) -> RoundResult:
        """Train in a round, whose settings hold what the device adds to them, and keep the update, durably.

        Raises RefusedError when the model is not one for this device; CorruptError when it is not the model
        that was announced; NoDataError when there is nothing to train on.
        """
        started = time.monotonic()
        announced = order.round
        upto = self._data.last_seq()
        base = fleet_model(order.model, announced.base.hash, self._max_bytes)
        if announced.config.statistics is not None:
            return self._sums(order, base, upto, started)
        made = self._trainer.train_round(
            base,
            announced.config,
            self._carried(),
            rng=self._rng(announced.round),
            seconds=order.seconds,
        )
        if not made.coded:
            raise RefusedError("training has changed nothing: there is nothing to send", where="round")
        about = self._about(announced, made, upto)
        kept = self._kept.add(about, update_encoding.pack(made.coded), _flat(made.carried))
        return RoundResult(
            run=order.run,
            number=kept.number,
            about=about,
            samples=made.samples,
            steps=made.steps,
            norm=made.norm,
            moved=made.moved,
            before=made.before,
            after=made.after,
            bytes=len(kept.blob),
            seconds=time.monotonic() - started,
        )

    def _rng(self, number: int) -> np.random.Generator:
        return np.random.default_rng(secrets.randbits(256) if self._seed is None else (self._seed, number))

    def _sums(
        self, order: TrainRound, base: Mapping[str, NDArray[np.float32]], upto: int, started: float
    ) -> RoundResult:
        """Keep the statistics of the last layer, and what the next round of training goes on from."""
        announced = order.round
        found = self._trainer.head_statistics(base, announced.config)
        nothing = RoundContribution({}, self._carried(), int(found.rows), 0, 0.0, 0.0, None, None)
        about = replace(self._about(announced, nothing, upto), noise=0.0)
        kept = self._kept.add(about, update_encoding.pack_sums(found.vector()), _flat(nothing.carried))
        return RoundResult(
            order.run, kept.number, about, nothing.samples, 0, 0.0, 0.0, None, None,
            bytes=len(kept.blob), seconds=time.monotonic() - started,
        )  # fmt: skip

    def _about(self, announced: RoundAnnouncement, made: RoundContribution, upto: int) -> KeptUpdate:
        """Describe the update; with noise nothing that was counted without noise but the samples."""
        loss, metrics = None, {}
        if made.after is not None and not announced.config.noise:
            loss, metrics = made.after.loss, {"metric": made.after.metric}
            if made.before is not None:
                metrics |= {"loss_before": made.before.loss, "metric_before": made.before.metric}
        return KeptUpdate(
            device=self._device,
            round=announced.round,
            id=announced.id,
            base=announced.base.hash,
            samples=made.samples,
            norm=made.norm,
            noise=announced.config.noise,
            loss=loss,
            metrics=metrics,
            consumed=upto,
            masked=announced.config.masks is not None,
        )

    def _carried(self) -> CarriedState:
        newest = self._kept.newest()
        if newest is None:
            return CarriedState()
        return CarriedState(newest.held(RESIDUAL), newest.held(PERSONAL), newest.held(MOVED))


def _flat(carried: CarriedState) -> dict[str, NDArray[np.float32]]:
    return {
        **{RESIDUAL + name: value for name, value in carried.residual.items()},
        **{PERSONAL + name: value for name, value in carried.personal.items()},
        **{MOVED + name: value for name, value in carried.moved.items()},
    }
