"""Remembered samples that the model gets wrong are drawn more often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from edged.domain.stream.schema import Task

LARGEST = 20.0  # a row's loss counts at most so many times the mean: labels may be wrong


@dataclass(frozen=True)
class Hardness:
    """Losses `(n,)` of samples as a run began, with their offsets `(n,)`, rising.

    A row is drawn in proportion to `1 - share` and its loss over the mean times `share`: in proportion to its
    loss, with a floor, so that nothing is forgotten. Schaul, Quan, Antonoglou and Silver: Prioritized
    experience replay (ICLR 2016).

    Examples
    --------
    >>> hard = Hardness(np.array([4, 7]), np.array([0.0, 3.0]))
    >>> hard.weights(np.array([4, 7, 9]), 0.5).tolist()
    [0.5, 1.5, 1.0]
    """

    offsets: NDArray[np.int64]
    losses: NDArray[np.float64]

    def weights(self, offsets: NDArray[np.int64], share: float) -> NDArray[np.float64]:
        """How often these samples `(m,)` are drawn, 1 for an average one and for one without a loss."""
        if len(self.offsets) == 0:
            return np.ones(len(offsets))
        place = np.minimum(np.searchsorted(self.offsets, offsets), len(self.offsets) - 1)
        usual = float(self.losses.mean())
        relative = np.minimum(self.losses / usual, LARGEST) if usual > 0 else np.ones(len(self.losses))
        known = self.offsets[place] == offsets
        return np.where(known, 1.0 - share + share * relative[place], 1.0)

    def dump(self) -> dict[str, NDArray[np.generic]]:
        """As arrays, for a checkpoint."""
        return {"hard_offsets": self.offsets, "hard_losses": self.losses}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Hardness | None:
        """What `dump` gave; None where there is nothing of it."""
        if "hard_offsets" not in arrays:
            return None
        return cls(arrays["hard_offsets"].astype(np.int64), arrays["hard_losses"].astype(np.float64))


def losses(
    task: Task, probable: NDArray[np.float32], y: NDArray[np.float32], unit: NDArray[np.float32] | float
) -> NDArray[np.float64]:
    """Loss of each row, `(n,)`: its surprise for classes, else the mean absolute error in `unit`.

    `probable` are probabilities `(n, c)`, or values `(n, k)`; what is not finite counts as 0.

    >>> found = losses("classify", np.array([[0.5, 0.5]], np.float32), np.array([[1]], np.float32), 1.0)
    >>> found.round(4).tolist()
    [0.6931]
    """
    if task == "classify":
        right = probable[np.arange(len(y)), y[:, 0].astype(np.int64)].astype(np.float64)
        found = -np.log(np.maximum(right, 1e-9))
    else:
        found = np.abs((probable.astype(np.float64) - y) * unit).mean(axis=1)
    return np.nan_to_num(found, nan=0.0, posinf=0.0)
