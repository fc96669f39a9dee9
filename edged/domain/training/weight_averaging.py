"""Weights averaged over the last steps and over many, and which of the two is worth serving."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.json_fields import JsonObject

    Weights = Mapping[str, NDArray[np.float32]]
    Values = dict[str, NDArray[np.float32]]

LONG, SHORT = "average/", "short_average/"  # before the names of arrays in a checkpoint
HALF_LIFE = 1000.0  # labelled samples after which an earlier judgement counts half
# Share of the short average that is left after a step: it reaches some 30 steps back.
SHORT_DECAY = 0.97


class Average:
    """Two exponential moving averages of weights, judged on labels that neither has learned from.

    Averaging takes out the noise of single steps, which is a gain where the world stands still, and lags
    behind where it moves. So there is a long average and a short one, both are tested on new labels before
    these are learned (test, then train), and the one with the smaller loss is exported. The weights
    themselves never are: what they know of a rare old sample changes from step to step. Polyak and Juditsky
    (1992); with decay: Tarvainen and Valpola (2017).

    `decay`: share of the old long average that is left after one optimizer step; 0 keeps no averages.
    `values` and `short`: the averages by parameter name, None before the first step. `losses`: faded sums of
    the losses of the short average and of the long one, rows counted alike.

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
        values: Values | None = None,
        losses: tuple[float, float] = (0.0, 0.0),
        short: Values | None = None,
    ) -> None:
        self.decay = decay
        self.values = values if decay > 0 else None
        self.short = short if decay > 0 else None
        self.losses = losses

    def follow(self, weights: Weights, steps: int) -> None:
        """Take in the weights after `steps` more steps; those in between count as if they were the same."""
        if self.decay <= 0:
            return
        self.values = _followed(self.values, weights, self.decay**steps)
        self.short = _followed(self.short, weights, min(SHORT_DECAY, self.decay) ** steps)

    def judge(self, short: float, long: float, rows: int) -> None:
        """Take in mean losses on `rows` samples before they are learned; infinite ones say nothing."""
        if not (math.isfinite(short) and math.isfinite(long)):
            return
        kept = 0.5 ** (rows / HALF_LIFE)
        self.losses = (self.losses[0] * kept + short * rows, self.losses[1] * kept + long * rows)

    @property
    def better(self) -> bool:
        """Whether the long average has done better than the short one, lately."""
        return self.values is not None and self.losses[1] < self.losses[0]

    @property
    def chosen(self) -> Values | None:
        """What is worth serving; None where only the weights themselves are known."""
        return self.values if self.better else self.short

    def dump(self) -> tuple[JsonObject, Values]:
        """Return JSON values and arrays for a checkpoint."""
        arrays = {f"{LONG}{name}": value for name, value in (self.values or {}).items()}
        arrays |= {f"{SHORT}{name}": value for name, value in (self.short or {}).items()}
        return {"losses": list(self.losses)}, arrays

    @classmethod
    def load(cls, decay: float, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Average:
        """What `dump` gave; the decay comes from the present configuration."""
        short, long = values.get("losses", (0.0, 0.0))
        return cls(decay, _held(arrays, LONG), (short, long), _held(arrays, SHORT))


def _followed(average: Values | None, weights: Weights, left: float) -> Values:
    """The average, of which `left` stays, with these weights in it; it begins with the first ones."""
    if average is None:
        return {name: np.array(value, np.float32) for name, value in weights.items()}
    share = np.float32(1.0 - left)
    for name, value in weights.items():
        average[name] += share * (value - average[name])
    return average


def _held(arrays: Mapping[str, NDArray[Any]], prefix: str) -> Values | None:
    held = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return {name: array.copy() for name, array in held.items()} or None
