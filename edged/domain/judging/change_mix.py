"""How much a forecast trusts its model: between the last value, which needs no model, and the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.json_fields import JsonObject

    Floats = NDArray[np.float32]

SLOW, FAST = 0.002, 0.05  # step of a late label, and of the first one
HALVED = 20  # labels after which the first step is halved
MOST = 3.0  # usual changes that one label counts as at most: a glitch moves a share no further


def step_after(labels: int, halved: int) -> float:
    """The step of a label: from `FAST` on, half of it after `halved` labels, and `SLOW` in the end."""
    return max(SLOW, FAST / (1 + labels / halved))


class ChangeMix:
    """Shares g in [0, 1] of the change that a model foresees: last value + g · (answer − last value).

    `columns` are those of a sample that are forecast, one share for each; every share begins with 1, the
    model's own answer. A label moves it against the gradient of the absolute error, in units of the usual
    change, in steps from `FAST` to `SLOW`: so what is served is no worse than the last value for long.
    """

    head = None  # that of classes
    common = None

    def __init__(self, columns: Sequence[int]) -> None:
        self._columns = list(columns)
        self._shares, self._usual = np.ones(len(columns)), np.zeros(len(columns))
        self.labels = 0

    @property
    def shares(self) -> NDArray[np.float64]:
        """Return the share of the model in each target's answer, `(targets,)`."""
        return self._shares

    def fresh(self) -> ChangeMix:
        """The same for a model of its own, which is served as it is."""
        return ChangeMix(self._columns)

    def beside(self, x: Floats, raw: Floats) -> Floats:
        """Last values and answers `raw` `(n, targets)` of samples `x` `(n, d)`: `(n, 2, targets)`."""
        return np.stack([x[:, self._columns], raw], axis=1)

    def combine(self, experts: Floats) -> Floats:
        """What is served, `(n, targets)`, of last values and answers `(n, 2, targets)`."""
        last, raw = experts[:, 0], experts[:, 1]
        if (self._shares == 1).all():
            return raw
        return np.asarray(last + self._shares.astype(np.float32) * (raw - last), np.float32)

    def update(self, experts: Floats, y: Floats) -> None:
        """Learn from targets `y` `(n, targets)`, of which was said `experts` `(n, 2, targets)`."""
        changes, wanted = np.diff(experts, axis=1)[:, 0].astype(np.float64), y - experts[:, 0]
        for change, right in zip(changes, wanted.astype(np.float64), strict=True):
            self.labels += 1
            size = np.abs(change)
            bounded = size if self.labels <= HALVED else np.minimum(size, MOST * self._usual)
            self._usual += (bounded - self._usual) * max(SLOW, 1 / self.labels)
            step = step_after(self.labels, HALVED)
            far = np.minimum(size / np.maximum(self._usual, 1e-30), MOST) * np.sign(change)
            self._shares = np.clip(self._shares + step * far * np.sign(right - self._shares * change), 0, 1)

    def state(self) -> JsonObject:
        """Return the state as JSON values, for `restore`."""
        return {"shares": self._shares.tolist(), "usual": self._usual.tolist(), "labels": self.labels}

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned, where it is of as many targets; CorruptError when it is none."""
        try:
            shares, usual = (np.asarray(state[name], np.float64) for name in ("shares", "usual"))
            labels = int(state["labels"])
        except (LookupError, TypeError, ValueError) as problem:
            raise CorruptError(f"shares of changes are damaged: {problem}") from problem
        if not (np.isfinite(usual).all() and ((shares >= 0) & (shares <= 1)).all() and labels >= 0):
            raise CorruptError("shares of changes are damaged")
        if shares.shape == usual.shape == self._shares.shape:
            self._shares, self._usual, self.labels = shares, usual, labels
