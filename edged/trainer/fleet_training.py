"""A device's part in a round of a fleet: trained from the fleet's model on the device's own data.

The engine is one of its own with a fresh optimizer: what the device learns for itself is not touched.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.federated.feddyn import moved_on, pulled
from edged.domain.federated.head_statistics import HeadStatistics, NetworkStatistics
from edged.domain.federated.personal_layers import fitting, is_personal, only
from edged.domain.federated.privacy import clipped, noised, norm
from edged.domain.protocols import Anchor, LearningRate
from edged.domain.training.weight_deltas import Coding, code, decode, difference
from edged.errors import NoDataError, RefusedError
from edged.trainer.head_inputs import HeadInputs
from edged.trainer.steps import InterruptedRunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.federated.messages import Quality
    from edged.domain.federated.settings import RoundSettings
    from edged.domain.protocols import Engine, RoundData, Throttle
    from edged.domain.stream.sample import Window
    from edged.domain.training.weight_deltas import Coded
    from edged.trainer.task import EngineFactory, LearningTask

    Weights = Mapping[str, NDArray[np.float32]]


SOLVED_TASKS = {"classify": "classes", "regress": "values", "forecast": "values"}


@dataclass(frozen=True)
class CarriedState:
    """What a device carries from one round into the next.

    What codings have left out, personal layers, and with dynamic regularisation the sum of all updates.
    """

    residual: Weights = field(default_factory=dict)
    personal: Weights = field(default_factory=dict)
    moved: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class RoundContribution:
    """Contribution of a device to a round: its update, and what training cost.

    `coded` is the difference to the base as it is sent: without personal layers, clipped, with its noise;
    `norm` is its L2 norm, `moved` that before it was clipped. `carried` is for the next round; `samples` were
    trained on in `steps`. `before` and `after` are what the base with its personal layers, and what was made
    of it, reach on the device's own holdout; None without a holdout.
    """

    coded: dict[str, Coded]
    carried: CarriedState
    samples: int
    steps: int
    norm: float
    moved: float
    before: Quality | None
    after: Quality | None


class RoundTrainer:
    """Trains in rounds of a fleet, with a new engine in each."""

    def __init__(
        self, task: LearningTask, engines: EngineFactory, data: RoundData, throttle: Throttle
    ) -> None:
        self._task, self._engines, self._data, self._throttle = task, engines, data, throttle
        self._trainable = tuple(task.bundle.trainable)

    def train_round(
        self,
        base: Weights,
        config: RoundSettings,
        carried: CarriedState,
        *,
        rng: np.random.Generator,
        seconds: float = math.inf,
    ) -> RoundContribution:
        """Train from the fleet's model and return what came of it.

        Parameters
        ----------
        base
            The model of the fleet, by name; personal layers in it are left aside.
        config
            How to train, clip, add noise and code.
        carried
            From the round before.
        rng
            Shuffles; it also draws the noise, so it must be seeded from the system's randomness where there
            is any.
        seconds
            After which it makes do with the steps it has made, as FedProx allows (Li et al., 2020).

        Raises
        ------
        NoDataError
            When the device has no labelled sample.
        RefusedError
            When the base is not a model of this device's network, or the round cannot be as it asks.
        NonFiniteError
            When the weights do not stay finite.
        """
        if config.noise and not config.clip_norm:
            raise RefusedError("noise needs clip_norm: without it nothing says how much is enough")
        rows = self._data.rows()
        if len(rows) == 0:
            raise NoDataError("no labelled sample to train a round on", where="sample log")
        held = config.proximal + config.dynamic > 0
        engine = self._engines.open(anchored=held)
        start = fitting(
            base, {**self._data.parameters(), **carried.personal}, self._trainable, config.personal
        )
        engine.set_parameters(start)
        shared = [name for name in self._trainable if not is_personal(name, config.personal)]
        from_base = {name: start[name] for name in shared}
        if held:
            engine.guide(Anchor(*pulled(from_base, carried.moved, config.dynamic, config.proximal)))
        before = self._data.measure(engine)
        steps = self._fit(engine, rows, config, rng, seconds)
        made = engine.parameters()
        change = difference({name: made[name] for name in shared}, start)
        sent, coded, residual = _as_sent(change, config, carried.residual, rng)
        moved = moved_on(carried.moved, sent, from_base) if config.dynamic else {}
        return RoundContribution(
            coded, CarriedState(residual, only(made, config.personal), moved), len(rows), steps,
            norm(sent), norm(change), before, self._data.measure(engine),
        )  # fmt: skip

    def head_statistics(self, base: Weights, config: RoundSettings) -> NetworkStatistics:
        """The sums over the device's samples from which the last layers of the fleet's model are solved.

        `base` is the model of the fleet, `config` names the layers. Raises NoDataError when the device has no
        labelled sample; RefusedError when the base is not a model of this device's network, its task is
        another, or its output is not those layers'.
        """
        settings, task = config.statistics, self._task.schema.task
        if settings is None or SOLVED_TASKS.get(task) != settings.targets:
            kind = "nothing" if settings is None else settings.targets
            raise RefusedError(
                f"the round solves for {kind}, this device's task is {task}", where="statistics"
            )
        rows = self._data.rows()
        if len(rows) == 0:
            raise NoDataError("no labelled sample for a round", where="sample log")
        start = fitting(base, self._data.parameters(), self._trainable, ())
        readers = [HeadInputs(self._task.bundle, start, one, n) for n, one in enumerate(settings.layers)]
        inputs = [reader.read(rows.x, self._throttle) for reader in readers]
        y = rows.y if settings.targets == "classes" else readers[0].targets(rows.y, rows.x)
        usable = np.isfinite(y).all(axis=1) & np.all([np.isfinite(one).all(axis=1) for one in inputs], axis=0)
        if settings.targets == "values":
            return NetworkStatistics(
                tuple(HeadStatistics.of_values(one[usable], y[usable]) for one in inputs)
            )
        classes = y[usable, 0].astype(np.int64)
        of = HeadStatistics.of
        return NetworkStatistics(
            tuple(of(x[usable], classes, one.outputs) for x, one in zip(inputs, settings.layers, strict=True))
        )

    def _fit(
        self, engine: Engine, rows: Window, config: RoundSettings, rng: np.random.Generator, seconds: float
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


def _batches(count: int, size: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield rows in random order without end, each once before any is repeated."""
    left = np.empty(0, np.int64)
    while True:
        while len(left) < size:
            left = np.concatenate([left, rng.permutation(count)])
        yield left[:size]
        left = left[size:]


def _as_sent(
    change: Weights, config: RoundSettings, residual: Weights, rng: np.random.Generator
) -> tuple[Weights, dict[str, Coded], Weights]:
    """Return the change as receivers have it, its coding, and what the coding has left out.

    What earlier codings left out joins it: before it is clipped, but after the noise where there is any,
    since it is made of what has its noise already.
    """
    kept = {name: residual[name] for name, value in change.items() if _fits(residual, name, value)}
    if config.noise:
        deviation = config.noise * config.clip_norm
        wanted = _sum(noised(clipped(change, config.clip_norm), deviation, rng), kept)
    else:
        wanted = clipped(_sum(change, kept), config.clip_norm)
    coding = Coding(config.encoding.dtype, step=config.encoding.step)
    coded = code({name: value for name, value in wanted.items() if value.any()}, coding)
    sent = decode(coded)
    return sent, coded, difference({name: wanted[name] for name in sent}, sent)


def _sum(change: Weights, more: Weights) -> dict[str, NDArray[np.float32]]:
    return {name: value + more[name] if name in more else value for name, value in change.items()}


def _fits(residual: Weights, name: str, value: NDArray[np.float32]) -> bool:
    return name in residual and residual[name].shape == value.shape
