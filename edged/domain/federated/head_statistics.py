"""What the last layers of a network need to know of a device's samples to be solved for, as sums.

Sums of devices add up to those of all their samples, whatever the partition and the order: so the layer that
is solved for is the one that all samples together give (Zhuang et al., "ACIL: analytic class-incremental
learning", 2022; He et al., "AFL: a single-round analytic approach for federated learning", 2025).
"""

from __future__ import annotations

from collections.abc import Callable
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
    """Sums over samples of z = (1, inputs of a layer), `k` numbers, and of their targets y, `c`.

    `gram` is Σ z zᵀ `(k, k)`, `by_target` Σ z yᵀ `(k, c)`, where y are one-hot classes, or numbers: then
    `squares` is Σ y² `(c,)`, which is None for classes. All are float64.
    """

    gram: Doubles
    by_target: Doubles
    squares: Doubles | None = None

    @classmethod
    def of(cls, inputs: NDArray[np.float32], classes: NDArray[np.int64], count: int) -> HeadStatistics:
        """Sums over rows `(n, k - 1)` of `classes` `(n,)`, from 0 to `count` - 1."""
        one_hot = np.eye(count)
        found = cls._of(inputs, count, lambda at: one_hot[classes[at : at + AT_ONCE]])
        return cls(found.gram, found.by_target)

    @classmethod
    def of_values(cls, inputs: NDArray[np.float32], values: Doubles) -> HeadStatistics:
        """Sums over rows `(n, k - 1)` of `values` `(n, c)`."""
        return cls._of(inputs, values.shape[1], lambda at: values[at : at + AT_ONCE])

    @classmethod
    def _of(
        cls, inputs: NDArray[np.float32], count: int, targets: Callable[[int], Doubles]
    ) -> HeadStatistics:
        size = inputs.shape[1] + 1
        gram, by_target, squares = np.zeros((size, size)), np.zeros((size, count)), np.zeros(count)
        for at in range(0, len(inputs), AT_ONCE):
            part, here = inputs[at : at + AT_ONCE].astype(np.float64), targets(at)
            long = np.concatenate([np.ones((len(part), 1)), part], axis=1)
            gram += long.T @ long
            by_target += long.T @ here
            squares += (here**2).sum(axis=0)
        return cls(gram, by_target, squares)

    @property
    def rows(self) -> float:
        """How many samples they are of."""
        return float(self.gram[0, 0])

    @property
    def energy(self) -> float:
        """Mean square of the inputs of a sample."""
        return float(self.gram.diagonal()[1:].sum()) / max(self.rows, 1.0)

    @property
    def target_energy(self) -> float:
        """Mean square of the targets of a sample; 1 for classes."""
        return 1.0 if self.squares is None else float(self.squares.sum()) / max(self.rows, 1.0)

    def __add__(self, other: HeadStatistics) -> HeadStatistics:
        return self._with(other, 1.0)

    def __sub__(self, other: HeadStatistics) -> HeadStatistics:
        return self._with(other, -1.0)

    def _with(self, other: HeadStatistics, sign: float) -> HeadStatistics:
        mine, others = self.squares, other.squares
        squares = None if mine is None or others is None else mine + sign * others
        return HeadStatistics(self.gram + sign * other.gram, self.by_target + sign * other.by_target, squares)

    def vector(self) -> Doubles:
        """The numbers on the line, `(length(k - 1, c),)`: the upper triangle row by row, then the targets."""
        squares = [] if self.squares is None else [self.squares]
        return np.concatenate([self.gram[np.triu_indices(len(self.gram))], self.by_target.ravel(), *squares])

    @classmethod
    def from_vector(cls, vector: Doubles, width: int, count: int, *, values: bool = False) -> HeadStatistics:
        """What `vector` was called for; CorruptError where the length is not that of `width` and `count`."""
        if vector.shape != (length(width, count, values=values),):
            expected = length(width, count, values=values)
            raise CorruptError(f"{vector.shape} is not ({expected},)", where="statistics")
        places = np.triu_indices(width + 1)
        gram, ends = np.zeros((width + 1, width + 1)), len(places[0])
        gram[places] = vector[:ends]
        whole, rest = gram + np.triu(gram, 1).T, vector[ends:].astype(np.float64)
        cross = rest[: (width + 1) * count].reshape(width + 1, count)
        return cls(whole, cross, rest[(width + 1) * count :] if values else None)

    def solved(self, penalty: float, sharpness: float) -> tuple[Doubles, Doubles]:
        """Weights `(c, k - 1)` and bias `(c,)` of ridge regression; of classes times `sharpness`.

        `penalty` is of weights of standardised inputs, and grows for those that hardly ever change; constant
        ones have the weight 0. Raises NoDataError where there is no sample, or none of a second class.
        """
        if self.squares is None and np.count_nonzero(self.by_target[0] > 0.5) < 2:
            raise NoDataError("the samples of all devices have fewer than two classes", where="statistics")
        if self.rows < 0.5:
            raise NoDataError("no device has a sample", where="statistics")
        total, mean = self.rows, self.gram[0, 1:] / self.rows
        spread = self.gram[1:, 1:] - np.outer(self.gram[0, 1:], mean)
        scale = _scale(mean, np.sqrt(np.maximum(spread.diagonal(), 0) / total))
        left = spread * scale * scale[:, None]
        left[np.diag_indices_from(left)] += penalty
        right = (self.by_target[1:] - np.outer(mean, self.by_target[0])) * scale[:, None]
        weights = (np.linalg.solve(left, right) * scale[:, None]).T
        bias = self.by_target[0] / total - weights @ mean
        factor = sharpness if self.squares is None else 1.0
        return factor * weights, factor * bias


@dataclass(frozen=True)
class NetworkStatistics:
    """Sums for each of the layers of a network that are solved for, over the same samples."""

    layers: tuple[HeadStatistics, ...]

    @property
    def rows(self) -> float:
        """How many samples they are of."""
        return self.layers[0].rows

    @property
    def energy(self) -> float:
        """Mean square of the inputs of a sample, of all layers together."""
        return sum(layer.energy for layer in self.layers)

    @property
    def target_energy(self) -> float:
        """Mean square of the targets of a sample; 1 for classes."""
        return self.layers[0].target_energy

    def vector(self) -> Doubles:
        """The numbers on the line: layer after layer."""
        return np.concatenate([layer.vector() for layer in self.layers])


def _scale(mean: Doubles, deviation: Doubles) -> Doubles:
    """What inputs are multiplied with to have the deviation 1, or less where theirs is far below usual."""
    constant = deviation <= 1e-7 * np.maximum(np.abs(mean), 1e-5)
    least = SELDOM * float(np.median(deviation[~constant])) if not constant.all() else 0.0
    return np.where(constant, 0.0, 1 / np.where(constant, 1, np.hypot(deviation, least)))


def length(width: int, count: int, *, values: bool = False) -> int:
    """Numbers of the sums for a layer of so many inputs and outputs; of `values` their squares, too.

    >>> length(2, 3), length(2, 3, values=True)
    (15, 18)
    """
    return (width + 1) * (width + 2) // 2 + (width + 1) * count + (count if values else 0)


def spread(width: int, units: int) -> NDArray[np.int64]:
    """Which `units` of `width` inputs count, `(units,)`: as far from each other as from the ends.

    >>> spread(8, 8).tolist(), spread(8, 3).tolist()
    ([0, 1, 2, 3, 4, 5, 6, 7], [0, 2, 5])
    """
    return np.arange(units, dtype=np.int64) * width // units
