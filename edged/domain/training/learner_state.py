"""State of a learner between two steps: everything a checkpoint must hold beside the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.json_fields import JsonObject
from edged.domain.stream.running_statistics import RunningMoments
from edged.domain.training.batch_pool import Recent, Reservoir

Weights = Mapping[str, NDArray[np.float32]]
Values = dict[str, NDArray[np.float32]]


SCARCE_SHARE = 0.3  # labels of fewer samples than that get more steps each
MOST_TIMES = 4.0
# Steps of the first run of a network that begins from random weights, as a multiple of the usual ones.
FROM_RANDOM_TIMES = 4.0
# Samples that are left in the short memory when a drift starts a run: about those that showed it.
SHORT_AFTER_DRIFT = 200
AVERAGE = "average/"  # before the names of arrays in a checkpoint


@dataclass(frozen=True)
class RunPlan:
    """One run's fixed decisions, kept in its checkpoints so that it can be resumed exactly.

    The run learns from labelled samples with `after < seq <= upto`; by then the log was to give the next
    sample, labelled or not, the offset `arrived`, and `relabelled` labels had replaced earlier ones. As a
    part of a longer run it comes after `before` of that run's `whole` steps.
    """

    run: int
    trigger: str
    after: int
    upto: int
    steps: int
    learning_rate: float
    new_share: float
    arrived: int
    relabelled: int
    whole: int
    before: int = 0


@dataclass(frozen=True)
class MemoryRules:
    """Sizes of the memories and rates of forgetting, as the configuration has them.

    `replay` samples are kept of all, `recent` of the newest.
    `half_life` of the input statistics is in samples, `average` the decay of the averaged weights by step.
    """

    replay: int
    recent: int
    half_life: float
    average: float


@dataclass
class LearnerState:
    """Position in the stream, replay memory, input statistics, averaged weights and random numbers.

    `plan` is that of the run under way, `finished` that of the last run, all of whose steps are done.
    `relabelled` labels had replaced earlier ones when the last run began.
    """

    memory: Reservoir
    recent: Recent
    moments: RunningMoments
    average: Average
    rng: np.random.Generator
    consumed: int = 0
    arrived: int = 0
    total_steps: int = 0
    plan: RunPlan | None = None
    step: int = 0
    excluded: list[int] = field(default_factory=list)
    finished: RunPlan | None = None
    relabelled: int = 0

    @classmethod
    def fresh(cls, rules: MemoryRules, seed: int) -> LearnerState:
        """The state before anything was learned."""
        return cls(
            Reservoir(rules.replay),
            Recent(rules.recent),
            RunningMoments(rules.half_life),
            Average(rules.average),
            np.random.default_rng(seed),
        )

    def with_new_weights(self, rules: MemoryRules) -> None:
        """Reset what belongs to the weights, as others take their place.

        The position in the stream and the memory of samples stay.
        """
        self.moments, self.average = RunningMoments(rules.half_life), Average(rules.average)
        self.plan, self.step, self.total_steps, self.excluded, self.finished = None, 0, 0, [], None

    def remember(self, ids: NDArray[np.int64]) -> None:
        """Take samples `(n,)` into both memories once they were learned."""
        self.memory.add(ids, self.rng)
        self.recent.add(ids)

    def remembered(self) -> NDArray[np.int64]:
        """Offsets of all samples that are kept to be learned from again, each once, rising."""
        return np.union1d(self.memory.ids, self.recent.ids)

    def dump(self) -> tuple[JsonObject, dict[str, NDArray[Any]]]:
        """Return the state as JSON values and arrays."""
        values = {
            "consumed": self.consumed,
            "arrived": self.arrived,
            "total_steps": self.total_steps,
            "plan": asdict(self.plan) if self.plan else None,
            "step": self.step,
            "excluded": self.excluded,
            "finished": asdict(self.finished) if self.finished else None,
            "relabelled": self.relabelled,
            "memory": self.memory.state(),
            "moments_weight": self.moments.weight,
            "rng": self.rng.bit_generator.state,
        }
        arrays: dict[str, NDArray[Any]] = {
            "memory_ids": self.memory.ids,
            "recent_ids": self.recent.ids,
            **self.average.dump(),
        }
        if self.moments.mean is not None and self.moments.square is not None:
            arrays |= {"moments_mean": self.moments.mean, "moments_square": self.moments.square}
        return values, arrays

    @classmethod
    def load(
        cls, values: Mapping[str, Any], arrays: dict[str, NDArray[Any]], rules: MemoryRules
    ) -> LearnerState:
        """Restore the state that `dump` returned, under the present rules."""
        rng = np.random.default_rng()
        rng.bit_generator.state = values["rng"]
        mean, square = arrays.get("moments_mean"), arrays.get("moments_square")
        plan, finished = values["plan"], values["finished"]
        return cls(
            memory=Reservoir(rules.replay, arrays["memory_ids"].copy(), values["memory"]["seen"]),
            recent=Recent(rules.recent, arrays["recent_ids"]),
            moments=RunningMoments(rules.half_life, mean, square, values["moments_weight"]),
            average=Average.load(rules.average, arrays),
            rng=rng,
            plan=RunPlan(**plan) if plan else None,
            finished=RunPlan(**finished) if finished else None,
            excluded=list(values["excluded"]),
            **{name: values[name] for name in ("consumed", "arrived", "total_steps", "step", "relabelled")},
        )


def planned_steps(new: int, *, steps: int, steps_per: int, max_steps: int, times: float = 1.0) -> int:
    """Optimizer steps for `new` samples: in proportion, at least `steps`, at most `max_steps`.

    >>> planned_steps(400, steps=50, steps_per=100, max_steps=2000)
    200
    """
    return min(max_steps, round(times * max(steps, steps * new / steps_per)))


def scarcity(new: int, arrived: int) -> float:
    """Return the factor for the steps of a run whose samples have few labels: from 1 to 4.

    Steps follow the samples then: 20 labels of 200 samples get 150 steps, where 40 of 40 get 50.

    >>> [round(scarcity(new, 200), 1) for new in (200, 100, 50, 20, 2)]
    [1.0, 1.0, 1.2, 3.0, 4.0]
    """
    return min(MOST_TIMES, max(1.0, SCARCE_SHARE * arrived / max(1, new)))


def steps_of_epochs(epochs: float, rows: int, *, batch: int, share: float, accumulate: int) -> int:
    """Optimizer steps in which `rows` samples are seen `epochs` times, as a share of each batch.

    >>> steps_of_epochs(2, 320, batch=64, share=0.5, accumulate=1)
    20
    """
    return max(1, math.ceil(epochs * rows / (batch * share * accumulate)))


# ---- average of the weights ----------------------------------------------------------------------


class Average:
    """Exponential moving average of weights, which is exported instead of the weights themselves.

    It takes out the noise of single steps: what the weights know of a rare old sample changes from step to
    step. Polyak and Juditsky (1992); with decay: Tarvainen and Valpola (2017).

    `decay`: share of the old average that is left after one optimizer step; 0 keeps no average.
    `values`: the average by parameter name, None before the first step.

    Examples
    --------
    >>> average = Average(0.5)
    >>> average.follow({"w": np.zeros(1, np.float32)}, 1)
    >>> average.follow({"w": np.ones(1, np.float32)}, 2)
    >>> average.values["w"].tolist()
    [0.75]
    """

    def __init__(self, decay: float, values: Values | None = None) -> None:
        self.decay = decay
        self.values = values if decay > 0 else None

    def follow(self, weights: Weights, steps: int) -> None:
        """Take in the weights after `steps` more steps; those in between count as if they were the same."""
        if self.decay <= 0:
            return
        if self.values is None:
            self.values = {name: np.array(value, np.float32) for name, value in weights.items()}
            return
        share = np.float32(1.0 - self.decay**steps)
        for name, value in weights.items():
            self.values[name] += share * (value - self.values[name])

    def dump(self) -> Values:
        """Return arrays for a checkpoint."""
        return {f"{AVERAGE}{name}": value for name, value in (self.values or {}).items()}

    @classmethod
    def load(cls, decay: float, arrays: Mapping[str, NDArray[Any]]) -> Average:
        """Restore what `dump` returned; the decay comes from the present configuration."""
        held = {
            name.removeprefix(AVERAGE): array.copy()
            for name, array in arrays.items()
            if name.startswith(AVERAGE)
        }
        return cls(decay, held or None)
