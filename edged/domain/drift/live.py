"""What is watched of a model that serves: its errors, and where it has one, its confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.domain.drift.confidence import confidence_watch
from edged.domain.drift.cooldown import Cooldown
from edged.domain.drift.watch import bounded, error_watch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.drift.levels import DriftSignal

FIRST = 200  # errors of which the mean is what is to be expected


class LiveDrift:
    """Watches what is served.

    Errors are watched whichever version made them: a swap is no drift, and hides none, as only a rise is
    one. How sure a model is belongs to that model, so the watch begins anew with every version.

    Errors of classes are 0 or 1. Others have no bound: they are set in relation to the mean of the first
    `FIRST` ones, which are not watched themselves. Both watches share one cool-down, so that a change that
    both of them see is one signal.
    """

    def __init__(self, *, classes: bool) -> None:
        cooldown = Cooldown()
        self._errors, self._confidence = error_watch(cooldown), confidence_watch(cooldown)
        self._first: list[float] | None = None if classes else []
        self._expected = 0.0
        self._version: int | None = None
        self.signals = 0
        self.last: DriftSignal | None = None
        self._new: list[DriftSignal] = []

    def confidence(self, values: NDArray[np.float32], offsets: NDArray[np.int64], version: int) -> None:
        """Take in how sure predictions `(n,)` of a version were."""
        if version != self._version:
            self._version = version
            self._confidence.reset()
        self._add(self._confidence.update(values, offsets))

    def errors(self, values: NDArray[np.float64], offsets: NDArray[np.int64]) -> None:
        """Take in errors `(n,)` of predictions whose labels have come."""
        if self._first is not None:
            values, offsets = self._set_in_relation(values, offsets)
        self._add(self._errors.update(values, offsets))

    def _set_in_relation(
        self, values: NDArray[np.float64], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        first = self._first or []
        missing = max(0, FIRST - len(first))
        if missing:
            first += values[np.isfinite(values)][:missing].tolist()
            self._first = first
            if len(first) < FIRST:
                return values[:0], offsets[:0]
            self._expected = float(np.mean(first))
            values, offsets = values[missing:], offsets[missing:]
        return bounded(values, self._expected), offsets

    def _add(self, signals: list[DriftSignal]) -> None:
        for signal in signals:
            self.signals += 1
            self.last = signal
            self._new.append(signal)

    def take(self) -> list[DriftSignal]:
        """The signals that nobody has taken yet."""
        new, self._new = self._new, []
        return new
