"""The portable engine's state as a file, and the scalars of its next updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edged.domain.training.optimizers import Optimizer
from edged.engines.portable.description import Description
from edged.engines.runtime.lr_schedule import Schedule, rate_at
from edged.errors import CorruptError

STATE_FILE = "state.safetensors"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class SavedState:
    """Parameters by name; moments by kind and name, as the step graph keeps them."""

    parameters: dict[str, Floats]
    moments: dict[str, dict[str, Floats]]


def write(directory: Path, saved: SavedState) -> None:
    """Write `state.safetensors`; OSError when that fails."""
    tensors = {f"value/{name}": value for name, value in saved.parameters.items()}
    for kind, values in saved.moments.items():
        tensors |= {f"{kind}/{name}": value for name, value in values.items()}
    (directory / STATE_FILE).write_bytes(save(tensors))


def read(directory: Path, description: Description) -> SavedState:
    """The state in `directory`, checked against what the step graph takes.

    Raises CorruptError when the file is missing or cannot be read, or a tensor does not fit.
    """
    path = directory / STATE_FILE
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError) as problem:
        raise CorruptError("is missing or damaged", where=str(path)) from problem
    by_kind: dict[str, dict[str, Floats]] = {kind: {} for kind in description.optimizer.kinds}
    for name, value in tensors.items():
        kind, _, parameter = name.partition("/")
        by_kind.setdefault(kind, {})[parameter] = value
    saved = SavedState(by_kind.pop("value"), by_kind)
    _check(saved.parameters, description.shapes, path)
    places = {name: place.shape for name, place in description.places.items()}
    for kind in description.optimizer.kinds[1:]:
        _check(saved.moments[kind], places, path)
    return saved


def _check(values: Mapping[str, Floats], shapes: Mapping[str, tuple[int, ...]], where: Path) -> None:
    if values.keys() != shapes.keys() or any(values[name].shape != shape for name, shape in shapes.items()):
        raise CorruptError("holds the state of another model or optimizer", where=str(where))


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
