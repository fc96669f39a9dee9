"""Rounds of a fleet in the trainer process: from the fleet's weights to what this device makes of them.

The difference is stored to be sent over MQTT; a program on this machine gets the weights themselves. The
device trains on its own data, with a new engine and optimizer: its own learning is not touched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.federated.messages import FitSettings, RoundSettings
from edged.domain.federated.round_orders import (
    KeptUpdate,
    RoundResult,
    TrainedWeights,
    TrainFrom,
    TrainRound,
)
from edged.domain.protocols import Anchor, Engine, LearningRate, Throttle
from edged.domain.stream.sample import Window
from edged.domain.training.weight_coding import Coded, code, decode, difference
from edged.errors import NoDataError, RefusedError
from edged.mqtt import weight_encoding
from edged.mqtt.weight_encoding import fleet_model
from edged.storage.files.atomic import disk_errors
from edged.storage.models.fleet import SentUpdates
from edged.storage.samples.log import SampleLog
from edged.trainer.foreign_weights import WeightImporter
from edged.trainer.learner import Learner
from edged.trainer.steps import BatchSampler, InterruptedRunError
from edged.trainer.task import JUDGED_ROWS, EngineFactory, LearningTask, quality

Weights = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class RoundContribution:
    """Contribution of a device to a round: its update, and what training cost.

    `coded` is the difference to the base as it is sent, clipped; `norm` is its L2 norm. `residual` is what
    coding has left out, for the next round; `samples` were trained on in `steps`.
    """

    coded: dict[str, Coded]
    residual: Weights
    samples: int
    steps: int
    norm: float


@dataclass(frozen=True)
class Fit:
    """Result of training: an engine with the new weights, and the rows used.

    `change` is the difference of the trainable weights to those at the start, by name.
    """

    engine: Engine
    change: Weights
    rows: Window
    steps: int


class RoundTrainer:
    """Trains in rounds of a fleet on the learner's samples, with a new engine in each."""

    def __init__(
        self,
        task: LearningTask,
        engines: EngineFactory,
        learner: Learner,
        sampler: BatchSampler,
        importer: WeightImporter,
        throttle: Throttle,
    ) -> None:
        self._task, self._engines, self._throttle = task, engines, throttle
        self._learner, self._sampler, self._importer = learner, sampler, importer
        self._trainable = tuple(task.bundle.trainable)

    def train_round(
        self,
        base: Weights,
        config: RoundSettings,
        residual: Weights,
        *,
        rng: np.random.Generator,
        seconds: float = math.inf,
    ) -> RoundContribution:
        """Train from the fleet's model and return what came of it.

        Parameters
        ----------
        base
            The model of the fleet, by name.
        config
            How to train and clip.
        residual
            What coding has left out in the round before.
        rng
            Shuffles the rows.
        seconds
            Maximum time; the round makes do with the steps it has made.

        Raises
        ------
        NoDataError
            When the device has no labelled sample.
        RefusedError
            When the base is not a model of this device's network.
        NonFiniteError
            When the weights do not stay finite.
        """
        fit = self.fit(base, config, rng=rng, seconds=seconds)
        wanted = clipped(_sum(fit.change, residual), config.clip_norm)
        coded = code({name: value for name, value in wanted.items() if value.any()}, "int8")
        sent = decode(coded)
        left_out = difference({name: wanted[name] for name in sent}, sent)
        return RoundContribution(coded, left_out, len(fit.rows), fit.steps, norm(sent))

    def train_from(self, order: TrainFrom) -> TrainedWeights:
        """Train from received weights, and write the new ones to a file.

        Raises StorageError when the disk refuses; CorruptError when the weights are not those of the order;
        otherwise as `fit`.
        """
        started = time.monotonic()
        base = fleet_model(order.model, order.hash)
        settings = order.settings
        fit = self.fit(
            base, settings, rng=np.random.default_rng(), seconds=order.seconds, mu=settings.proximal_mu
        )
        made = fit.engine.parameters()
        trained = weight_encoding.to_safetensors({name: made[name] for name in self._trainable})
        with disk_errors("writing trained weights", order.trained):
            order.trained.write_bytes(trained)
        newest = fit.rows.take(np.arange(max(0, len(fit.rows) - JUDGED_ROWS), len(fit.rows)))
        return TrainedWeights(
            run=order.run,
            samples=len(fit.rows),
            steps=fit.steps,
            norm=norm(fit.change),
            quality=quality(fit.engine, newest, self._task),
            seconds=time.monotonic() - started,
        )

    def fit(
        self,
        base: Weights,
        settings: FitSettings,
        *,
        rng: np.random.Generator,
        seconds: float = math.inf,
        mu: float = 0.0,
    ) -> Fit:
        """Train from `base` on this device's samples, at most for `seconds`.

        With `mu` the penalty ½·mu·‖w − base‖² over the trainable weights joins the loss. Raises as
        `train_round`, and UnavailableError where the engine has no such penalty.
        """
        rows = self._sampler.all_rows(self._learner.state)
        if len(rows) == 0:
            raise NoDataError("no labelled sample to train a round on", where="sample log")
        engine, start = self._engines.open(), self._importer.checked(base)
        engine.set_parameters(start)
        if mu:
            engine.guide(Anchor({name: start[name] for name in self._trainable}, mu))
        steps = self._steps(engine, rows, settings, rng, seconds)
        made = engine.parameters()
        change = difference({name: made[name] for name in self._trainable}, start)
        return Fit(engine, change, rows, steps)

    def _steps(
        self, engine: Engine, rows: Window, config: FitSettings, rng: np.random.Generator, seconds: float
    ) -> int:
        labels, size = self._task.labels.of(rows.y), min(config.batch_size, len(rows))
        total = config.steps or math.ceil((config.epochs or 1) * len(rows) / size)
        batches, until, made = _batches(len(rows), size, rng), time.monotonic() + seconds, 0
        engine.begin(LearningRate(config.learning_rate))
        while made < total and (made == 0 or time.monotonic() < until):
            began = time.monotonic()
            chosen = next(batches)
            # A batch that makes no finite loss changes nothing, and counts as made.
            engine.step(rows.x[chosen], labels[chosen])
            made += 1
            self._throttle.throttle(time.monotonic() - began)
            if self._throttle.stopping:
                raise InterruptedRunError("asked to stop", where=f"step {made} of {total} of a round")
        engine.check()
        return made


class FleetUpdateTrainer:
    """Trains in a round of the fleet, and stores the update of `device` that is to be sent."""

    def __init__(
        self,
        device: str,
        state: Path,
        trainer: RoundTrainer,
        samples: SampleLog,
    ) -> None:
        self._device, self._trainer, self._samples = device, trainer, samples
        self._kept = SentUpdates(state)

    def contribute(self, order: TrainRound) -> RoundResult:
        """Train in a round, and keep the update durably.

        Raises RefusedError when the model is not one for this device; CorruptError when it is not the model
        that was announced; NoDataError when there is nothing to train on.
        """
        started = time.monotonic()
        announced = order.round
        upto = self._samples.last_seq()
        base = fleet_model(order.model, announced.base.hash)
        newest = self._kept.newest()
        residual = {} if newest is None else newest.residual
        made = self._trainer.train_round(
            base, announced.config, residual, rng=np.random.default_rng(), seconds=order.seconds
        )
        if not made.coded:
            raise RefusedError("training has changed nothing: there is nothing to send", where="round")
        about = KeptUpdate(
            device=self._device,
            round=announced.round,
            id=announced.id,
            base=announced.base.hash,
            samples=made.samples,
            consumed=upto,
        )
        kept = self._kept.add(about, weight_encoding.pack_coded(made.coded), made.residual)
        return RoundResult(
            run=order.run,
            number=kept.number,
            about=about,
            samples=made.samples,
            steps=made.steps,
            norm=made.norm,
            bytes=len(kept.blob),
            seconds=time.monotonic() - started,
        )


def norm(change: Weights) -> float:
    """L2 norm over all tensors together."""
    return math.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in change.values()))


def clipped(change: Weights, bound: float) -> dict[str, NDArray[np.float32]]:
    """Return the change, scaled down where its norm is above `bound`; 0 bounds nothing.

    >>> clipped({"w": np.array([3.0, 4.0], np.float32)}, 1.0)["w"].tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    length = norm(change)
    if not bound or length <= bound:
        return {name: value.copy() for name, value in change.items()}
    return {name: np.asarray(value * (bound / length), np.float32) for name, value in change.items()}


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield rows in random order without end, each once before any is repeated."""
    left = np.empty(0, np.int64)
    while True:
        while len(left) < size:
            left = np.concatenate([left, rng.permutation(count)])
        yield left[:size]
        left = left[size:]


def _sum(change: Weights, more: Weights) -> dict[str, NDArray[np.float32]]:
    """Add what an earlier coding left out, where it is of the same network."""
    return {
        name: value + more[name] if name in more and more[name].shape == value.shape else value
        for name, value in change.items()
    }
