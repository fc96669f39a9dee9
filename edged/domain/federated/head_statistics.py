"""What a network's last layer needs to know of a device's samples to be solved for, as sums.

Sums of devices add up to those of all their samples, whatever the partition and the order: so the layer that
is solved for is the one that all samples together give (Zhuang et al., "ACIL: analytic class-incremental
learning", 2022; He et al., "AFL: a single-round analytic approach for federated learning", 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edged.errors import CorruptError, NoDataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]

SELDOM = 0.25  # of the median deviation: what an input that hardly ever changes is made to have
AT_ONCE = 1024  # rows whose features are float64 at a time


@dataclass(frozen=True)
class HeadStatistics:
    """Sums over samples of z = (1, inputs of the last layer), `k` numbers, and of their classes, `c`.

    `gram` is Σ z zᵀ `(k, k)`, `by_class` Σ z yᵀ `(k, c)` for one-hot y; both float64.
    """

    gram: Doubles
    by_class: Doubles

    @classmethod
    def of(cls, inputs: NDArray[np.float32], classes: NDArray[np.int64], count: int) -> HeadStatistics:
        """Sums over rows `(n, k - 1)` of `classes` `(n,)`, from 0 to `count` - 1."""
        gram = np.zeros((inputs.shape[1] + 1, inputs.shape[1] + 1))
        by_class = np.zeros((inputs.shape[1] + 1, count))
        for at in range(0, len(inputs), AT_ONCE):
            part, here = inputs[at : at + AT_ONCE].astype(np.float64), classes[at : at + AT_ONCE]
            long = np.concatenate([np.ones((len(part), 1)), part], axis=1)
            gram += long.T @ long
            by_class += long.T @ np.eye(count)[here]
        return cls(gram, by_class)

    @property
    def rows(self) -> float:
        """How many samples they are of."""
        return float(self.gram[0, 0])

    @property
    def energy(self) -> float:
        """Mean square of the inputs of a sample."""
        return float(self.gram.diagonal()[1:].sum()) / max(self.rows, 1.0)

    def __add__(self, other: HeadStatistics) -> HeadStatistics:
        return HeadStatistics(self.gram + other.gram, self.by_class + other.by_class)

    def __sub__(self, other: HeadStatistics) -> HeadStatistics:
        return HeadStatistics(self.gram - other.gram, self.by_class - other.by_class)

    def vector(self) -> Doubles:
        """The numbers on the line, `(length(k, c),)`: the upper triangle row by row, then the classes."""
        return np.concatenate([self.gram[np.triu_indices(len(self.gram))], self.by_class.ravel()])

    @classmethod
    def from_vector(cls, vector: Doubles, width: int, count: int) -> HeadStatistics:
        """What `vector` was called for; CorruptError where the length is not that of `width` and `count`."""
        if vector.shape != (length(width, count),):
            raise CorruptError(f"{vector.shape} is not ({length(width, count)},)", where="statistics")
        places = np.triu_indices(width + 1)
        gram = np.zeros((width + 1, width + 1))
        gram[places] = vector[: len(places[0])]
        whole = gram + np.triu(gram, 1).T
        return cls(whole, vector[len(places[0]) :].reshape(width + 1, count).astype(np.float64))

    def solved(self, penalty: float, sharpness: float) -> tuple[Doubles, Doubles]:
        """Weights `(c, k - 1)` and bias `(c,)` of ridge regression on the classes, times `sharpness`.

        `penalty` is of weights of standardised inputs, and grows for those that hardly ever change; constant
        ones have the weight 0. Raises NoDataError where there are no samples of two classes.
        """
        if np.count_nonzero(self.by_class[0] > 0.5) < 2:
            raise NoDataError("the samples of all devices have fewer than two classes", where="statistics")
        total, mean = self.rows, self.gram[0, 1:] / self.rows
        spread = self.gram[1:, 1:] - np.outer(self.gram[0, 1:], mean)
        scale = _scale(mean, np.sqrt(np.maximum(spread.diagonal(), 0) / total))
        left = spread * scale * scale[:, None]
        left[np.diag_indices_from(left)] += penalty
        right = (self.by_class[1:] - np.outer(mean, self.by_class[0])) * scale[:, None]
        weights = (np.linalg.solve(left, right) * scale[:, None]).T
        bias = self.by_class[0] / total - weights @ mean
        return sharpness * weights, sharpness * bias


def _scale(mean: Doubles, deviation: Doubles) -> Doubles:
    """What inputs are multiplied with to have the deviation 1, or less where theirs is far below usual."""
    constant = deviation <= 1e-7 * np.maximum(np.abs(mean), 1e-5)
    least = SELDOM * float(np.median(deviation[~constant])) if not constant.all() else 0.0
    return np.where(constant, 0.0, 1 / np.where(constant, 1, np.hypot(deviation, least)))


def length(width: int, count: int) -> int:
    """Numbers of the sums for a layer of so many inputs and outputs.

    >>> length(2, 3)
    15
    """
    return (width + 1) * (width + 2) // 2 + (width + 1) * count
