"""Running input statistics: the standardisation inside the graph follows slow sensor drift."""

from __future__ import annotations

import numpy as np

from edged.domain.arrays import Doubles, Floats

FAR = 10.0  # standard deviations from the mean beyond which a value counts as one that is just so far
ENOUGH = 20  # rows for which that can be said


class RunningMoments:
    """Exponentially weighted mean and variance of `d` features.

    `half_life` is in samples: after as many new ones the old statistics count half. The first
    samples are weighted as a plain average, so nothing depends on where the statistics began. What one value
    can change is bounded: a glitch does not hide all others, and a lasting change is followed step by step.
    """

    def __init__(
        self,
        half_life: float,
        mean: Doubles | None = None,
        square: Doubles | None = None,
        weight: float = 0.0,
    ) -> None:
        self.half_life = half_life
        self.mean = None if mean is None else np.asarray(mean, np.float64)
        self.square = None if square is None else np.asarray(square, np.float64)
        self.weight = weight

    @classmethod
    def of_scale(cls, half_life: float, mean: Floats, scale: Floats) -> RunningMoments:
        """Fully formed statistics from a graph's `mean` and `scale` (1/std)."""
        centre = mean.astype(np.float64)
        return cls(half_life, centre, 1.0 / np.maximum(scale.astype(np.float64), 1e-12) ** 2 + centre**2, 1.0)

    def update(self, x: Floats) -> None:
        """Take in rows `(n, d)`; rows with NaN or infinity do not count."""
        rows = x[np.isfinite(x).all(axis=1)].astype(np.float64)
        if len(rows) == 0:
            return
        share = 1.0 - 0.5 ** (len(rows) / self.half_life)
        rows = self._bounded(rows)
        mean, square = rows.mean(axis=0), (rows**2).mean(axis=0)
        if self.mean is None or self.square is None:
            self.mean, self.square, self.weight = mean, square, share
            return
        total = self.weight * (1.0 - share) + share
        self.mean += (mean - self.mean) * (share / total)
        self.square += (square - self.square) * (share / total)
        self.weight = total

    def _bounded(self, rows: Doubles) -> Doubles:
        """The rows with values no further from the mean than `FAR`; of constant features and few rows all."""
        if self.mean is None or self.square is None or self.weight < 1.0 - 0.5 ** (ENOUGH / self.half_life):
            return rows
        deviation = np.sqrt(np.maximum(self.square - self.mean**2, 0.0))
        known = deviation > 1e-7 * np.maximum(np.abs(self.mean), 1e-5)
        far = np.where(known, FAR * deviation, np.inf)
        return np.clip(rows, self.mean - far, self.mean + far)

    def scale(self) -> tuple[Floats, Floats]:
        """`(mean, 1/std)`, each `(d,)` float32; a constant feature has scale 1."""
        if self.mean is None or self.square is None:
            raise ValueError("no rows have been seen")
        deviation = np.sqrt(np.maximum(self.square - self.mean**2, 0.0))
        tiny = deviation <= 1e-7 * np.maximum(np.abs(self.mean), 1e-5)
        scale = np.where(tiny, 1.0, 1.0 / np.where(tiny, 1.0, deviation))
        return self.mean.astype(np.float32), scale.astype(np.float32)


def fitted(mean: Floats, scale: Floats) -> bool:
    """Whether a graph's statistics are more than the identity that it was built with."""
    return bool((mean != 0).any() or (scale != 1).any())


def scale_of(values: Floats) -> tuple[Floats, Floats]:
    """`(mean, 1/std)` of the columns of `(n, k)`, each `(k,)` float32; a constant one has scale 1."""
    deviation = values.std(axis=0)
    unit = np.where(deviation > 1e-12, 1.0 / np.maximum(deviation, 1e-12), 1.0)
    return values.mean(axis=0).astype(np.float32), unit.astype(np.float32)
