"""Scalars of the next updates, computed ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from edged.engines.runtime.lr_schedule import rate_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.training.optimizers import Optimizer
    from edged.engines.runtime.lr_schedule import Schedule

AHEAD = 128  # updates whose scalars are computed at once


class Prefetch:
    """Scalars and scales of the next updates, computed many at a time.

    Between two runs of the runtime, which leave little of Python in the processor's caches, computing
    them one by one costs several times as much as in a loop.

    `names` are the scalars that the graph takes, in its order.
    """

    def __init__(self, rule: Optimizer, names: Sequence[str]) -> None:
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
