"""The portable engine's optimizer: the numbers that a step graph takes with every update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.engines.schedule import rate_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from edged.engines.schedule import Schedule

# Scaled gradients are at most so much larger than the true ones; single precision has room for more.
LARGEST_SCALE = 1024.0
AHEAD = 32  # updates whose scalars are computed at once


@dataclass(frozen=True)
class Rule:
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

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Rule:
        """Read it from the bundle's description; raises KeyError, TypeError or ValueError."""
        numbers = {key: float(data[key]) for key in ("alpha", "beta")}
        later = ("epsilon", "weight_decay", "clip_norm", "dampening")
        numbers |= {key: float(data.get(key, 0.0)) for key in later}
        return cls(
            name=data["name"],
            kinds=tuple(data["kinds"]),
            correct_bias=bool(data["correct_bias"]),
            scaled=bool(data.get("scaled", False)),
            **numbers,
        )

    @cached_property
    def adaptive(self) -> bool:
        """Whether it is a form of AdamW."""
        return self.name.startswith("adamw")

    @cached_property
    def _root(self) -> float:
        return math.sqrt(1 - self.beta)

    @cached_property
    def period(self) -> int:
        """Updates after which the moments are brought back to their true scale."""
        if not self.scaled:
            return 1
        return 1 + int(2 * math.log(LARGEST_SCALE) / -math.log(self.beta))

    def scale(self, update: int) -> float:
        """What the gradient of an update is multiplied with, `update` counted from 1."""
        return self.beta ** (-((update - 1) % self.period) / 2) if self.scaled else 1.0

    def scalars(self, rate: float, update: int) -> dict[str, float]:
        """What changes from update to update, `update` counted from 1.

        `size`
            What the graph multiplies a move with: the learning rate and, for AdamW, the bias corrections
            and (1 − β₁)/√(1 − β₂), because the moments are kept without these factors.
        `epsilon`
            ε in the units of the root of the second moment; in PyTorch's form times its bias correction.
        `keep`
            What the decay leaves of a weight.
        `ceiling`, `spare`
            Largest norm of the gradient, and what is added to the norm, both in the gradient's scale.
        `fresh`
            What of a gradient goes into the momentum: all of the first, 1 − dampening of those that follow.
        """
        scale = self.scale(update)
        values = {"size": rate}
        if self.adaptive:
            corrected = math.sqrt(1 - self.beta**update)
            values["size"] = rate * (1 - self.alpha) / self._root
            if self.correct_bias:
                values["size"] *= corrected / (1 - self.alpha**update)
            values["epsilon"] = self.epsilon * scale / self._root
            if self.name == "adamw_pytorch":
                values["epsilon"] *= corrected
            values["keep"] = 1 - rate * self.weight_decay
        if self.clip_norm:
            values["ceiling"], values["spare"] = self.clip_norm * scale, 1e-6 * scale
        if self.dampening:
            values["fresh"] = 1.0 if update == 1 else 1 - self.dampening
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


class Ahead:
    """Scalars and scales of the next updates, computed some at a time.

    Between two runs of the runtime, which leave little of Python in the processor's caches, that costs
    several times as much as in a loop.

    Parameters
    ----------
    rule
        The optimizer's.
    names
        The scalars that the graph takes, in its order.
    """

    def __init__(self, rule: Rule, names: Sequence[str]) -> None:
        self._rule, self._names = rule, tuple(names)
        self._schedule: Schedule | None = None
        self._position = self._update = 0
        self._known: list[tuple[float, NDArray[np.float32]]] = []

    def of(self, update: int, schedule: Schedule) -> tuple[float, NDArray[np.float32]]:
        """What the gradient of an update is multiplied with, and its scalars; `update` counted from 1."""
        i = update - self._update
        known = 0 <= i < len(self._known)
        if not (known and schedule is self._schedule and schedule.step == self._position + i):
            self._compute(update, schedule)
            i = 0
        return self._known[i]

    def _compute(self, update: int, schedule: Schedule) -> None:
        self._schedule, self._position, self._update = schedule, schedule.step, update
        self._known = []
        for i in range(AHEAD):
            values = self._rule.scalars(rate_at(schedule.rate, schedule.step + i), update + i)
            row = np.array([values[name] for name in self._names], np.float32)
            self._known.append((self._rule.scale(update + i), row))
