"""The portable engine's optimizer: the numbers that a step graph takes with every update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edged.domain.training.message import Message
from edged.engines.runtime.lr_schedule import rate_at

if TYPE_CHECKING:
    from edged.engines.runtime.lr_schedule import Schedule

# Scaled gradients are at most so much larger than the true ones; single precision has room for more.
LARGEST_SCALE = 1024.0
SMALLEST_SIZE = 1e-30
AHEAD = 128  # updates whose scalars are computed at once
# Updates after which what is left of moments without gradients is taken for 0.
SWEEP = 128

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class OptimizerInputs(Message):
    """What the optimizer keeps of a group, and its constants.

    AdamW's moments are kept without the factors 1 − β. With `scaled` the graph also leaves out the decay
    of the second one: gradients come to it larger by √β₂ with every update, so that the older ones count
    less beside them. After `period` updates the moments are brought back.
    """

    name: str
    kinds: tuple[str, ...]
    alpha: float
    beta: float
    correct_bias: bool
    epsilon: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    dampening: float = 0.0
    scaled: bool = False
    momentum: float = 0.0
    nesterov: bool = False
    beta1: float = 0.0
    beta2: float = 0.0
    bias_correction: bool = True

    @property
    def adaptive(self) -> bool:
        """Whether it is a form of AdamW."""
        return self.name.startswith("adamw")

    @property
    def _root(self) -> float:
        return math.sqrt(1 - self.beta)

    @property
    def period(self) -> int:
        """Updates after which the moments are brought back to their true scale."""
        if not self.scaled:
            return 1
        return 1 + int(2 * math.log(LARGEST_SCALE) / -math.log(self.beta))

    def tended_after(self, updates: int) -> int:
        """The next number of updates at which moments are swept or brought back to their true scale."""
        every = (SWEEP, self.period) if self.scaled else (SWEEP,)
        return min((updates // each + 1) * each for each in every)

    def scales(self, updates: Doubles) -> Doubles:
        """What the gradient of each update is multiplied with, `(n,)`; updates are counted from 1."""
        if not self.scaled:
            return np.ones_like(updates)
        return self.beta ** (-((updates - 1) % self.period) / 2)

    def scalars(self, rates: Doubles, updates: Doubles) -> dict[str, Doubles]:
        """What changes from update to update, each `(n,)`; `updates` `(n,)` are counted from 1.

        `size`
            What the graph multiplies a move with: the learning rate and, for AdamW, the bias corrections
            and (1 − β₁)/√(1 − β₂), because the moments are kept without these factors.
        `epsilon`
            ε in the units of the root of the second moment; in PyTorch's form times its bias correction.
        `slope`, `offset`
            1/size and epsilon/size, for graphs that divide by the sum of both. A size of 0 counts as one
            that moves no weight by as much as its last digit.
        `keep`
            What the decay leaves of a weight.
        `ceiling`, `spare`
            Largest norm of the gradient, and what is added to the norm, both in the gradient's scale.
        `fresh`
            What of a gradient goes into the momentum: all of the first, 1 − dampening of those that follow.
        """
        scale = self.scales(updates)
        values = {"size": rates}
        if self.adaptive:
            corrected = np.sqrt(1 - self.beta**updates)
            values["size"] = rates * ((1 - self.alpha) / self._root)
            if self.correct_bias:
                values["size"] = values["size"] * corrected / (1 - self.alpha**updates)
            values["epsilon"] = scale * (self.epsilon / self._root)
            if self.name == "adamw_pytorch":
                values["epsilon"] = values["epsilon"] * corrected
            values["slope"] = 1 / np.maximum(values["size"], SMALLEST_SIZE)
            values["offset"] = values["epsilon"] * values["slope"]
            values["keep"] = 1 - rates * self.weight_decay
        if self.clip_norm:
            values["ceiling"], values["spare"] = scale * self.clip_norm, scale * 1e-6
        if self.dampening:
            values["fresh"] = np.where(updates == 1, 1.0, 1 - self.dampening)
        return values

    def factors(self, updates: int) -> tuple[float, ...]:
        """What the moments kept after so many updates must be multiplied with to be the usual ones."""
        if not self.adaptive:
            return (1.0,) * (len(self.kinds) - 1)
        scale = self.beta ** (-(updates % self.period - 1) / 2) if self.scaled else 1.0
        return (1 - self.alpha) / scale, (1 - self.beta) / scale**2

    def renewal(self, updates: int) -> tuple[float, ...]:
        """What the moments must be multiplied with after so many updates; nothing most of the time."""
        if not self.scaled or updates % self.period:
            return ()
        return self.beta ** (self.period / 2), self.beta**self.period


class Prefetch:
    """Scalars and scales of the next updates, computed many at a time.

    Between two runs of the runtime, which leave little of Python in the processor's caches, computing
    them one by one costs several times as much as in a loop.

    `names` are the scalars that the graph takes, in its order.
    """

    def __init__(self, rule: OptimizerInputs, names: Sequence[str]) -> None:
        self._rule, self._names = rule, tuple(names)
        self._first = 0
        self._scales: list[float] = []
        self._rows = np.empty((0, len(names)), np.float32)

    def of(self, update: int, schedule: Schedule) -> tuple[float, NDArray[np.float32]]:
        """What the gradient of an update is multiplied with, and its scalars; `update` counted from 1.

        `schedule` stands where the update is made. When another one was begun, say so with `forget`.
        """
        i = update - self._first
        if not 0 <= i < len(self._scales):
            self._first, i = update, 0
            self._scales, self._rows = self.several(update, schedule, AHEAD)
        return self._scales[i], self._rows[i]

    def forget(self) -> None:
        """Compute anew: the schedule is another one, or stands elsewhere."""
        self._scales = []

    def several(self, update: int, schedule: Schedule, count: int) -> tuple[list[float], NDArray[np.float32]]:
        """Scales of so many updates from `update` on, and their scalars `(count, n)`."""
        updates = np.arange(update, update + count, dtype=np.float64)
        rates = np.array([rate_at(schedule.rate, schedule.step + i) for i in range(count)])
        values = self._rule.scalars(rates, updates)
        rows = np.array([values[name] for name in self._names], np.float32)
        return self._rule.scales(updates).tolist(), np.ascontiguousarray(rows.T)
