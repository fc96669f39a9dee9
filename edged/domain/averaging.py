"""Averaged weights beside the weights themselves, and which of the two is worth serving."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Weights = Mapping[str, NDArray[np.float32]]

HALF_LIFE = 1000.0  # labelled samples after which an earlier judgement counts half


class Average:
    """Exponential moving average of weights, judged beside them on labels that neither has learned from.

    Averaging takes out the noise of single steps, which is a gain where the world stands still, and lags
    behind where it moves. So both are tested on new labels before these are learned (test, then train), and
    the one with the smaller loss is exported. Polyak and Juditsky (1992); with decay: Tarvainen and Valpola
    (2017).

    Parameters
    ----------
    decay
        Share of the old average that is left after one optimizer step; 0 keeps no average.
    values
        The average by parameter name, None before the first step.
    losses
        Faded sums of the losses of the weights and of their average, rows counted alike.

    Examples
    --------
    >>> average = Average(0.5)
    >>> average.follow({"w": np.zeros(1, np.float32)}, 1)
    >>> average.follow({"w": np.ones(1, np.float32)}, 2)
    >>> average.values["w"].tolist()
    [0.75]
    """

    def __init__(
        self,
        decay: float,
        values: dict[str, NDArray[np.float32]] | None = None,
        losses: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        self.decay = decay
        self.values = values if decay > 0 else None
        self.losses = losses

    def follow(self, weights: Weights, steps: int) -> None:
        """Take in the weights after `steps` more steps; those in between count as if they were the same."""
        if self.decay <= 0:
            return
        if self.values is None:
            self.values = {name: np.array(value, np.float32) for name, value in weights.items()}
            return
        share = np.float32(1.0 - self.decay**steps)
        for name, value in weights.items():
            self.values[name] += share * (value - self.values[name])

    def judge(self, own: float, averaged: float, rows: int) -> None:
        """Take in mean losses on `rows` samples before they are learned; infinite ones say nothing."""
        if not (math.isfinite(own) and math.isfinite(averaged)):
            return
        kept = 0.5 ** (rows / HALF_LIFE)
        self.losses = (self.losses[0] * kept + own * rows, self.losses[1] * kept + averaged * rows)

    @property
    def better(self) -> bool:
        """Whether the average has done better than the weights themselves, lately."""
        return self.values is not None and self.losses[1] < self.losses[0]

    def dump(self) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        """As JSON values and arrays, for a checkpoint."""
        arrays = {f"average/{name}": value for name, value in (self.values or {}).items()}
        return {"losses": list(self.losses)}, arrays

    @classmethod
    def load(cls, decay: float, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Average:
        """What `dump` gave; the decay comes from the present configuration."""
        held = {
            name.removeprefix("average/"): array.copy()
            for name, array in arrays.items()
            if name.startswith("average/")
        }
        own, averaged = values.get("losses", (0.0, 0.0))
        return cls(decay, held or None, (own, averaged))
