"""Early stopping: a run ends when it no longer gets better on samples that it does not learn from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.stream.holdout import is_holdout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Weights = Mapping[str, NDArray[np.float32]]

EVERY = 16  # steps between two looks
SHARE = 0.1
FEWEST = 20
_OTHER = np.int64(1) << 40  # another hash than the holdout's


def validation(offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of these samples `(n,)` a run looks at and does not learn from, by their offsets alone.

    It is the same tenth in all runs, so that none of it was learned by an earlier one; none where that is
    fewer than `FEWEST`.
    """
    chosen = is_holdout(offsets + _OTHER, SHARE)
    return chosen if chosen.sum() >= FEWEST else np.zeros(len(offsets), bool)


class EarlyStopping:
    """The best weights of a run so far, by their validation loss.

    Parameters
    ----------
    steps
        Steps without a smaller loss that end a run; 0 never ends one.
    loss, since, values
        The smallest loss, steps since then, and the weights that had it.

    Notes
    -----
    L. Prechelt: Early stopping - but when? In: Neural networks: tricks of the trade (1998).

    Examples
    --------
    >>> patience = Patience(32)
    >>> [patience.look(loss, {}, 16) for loss in (1.0, 0.5, 0.6, 0.7)]
    [False, False, False, True]
    """

    def __init__(
        self,
        steps: int = 0,
        loss: float = math.inf,
        since: int = 0,
        values: dict[str, NDArray[np.float32]] | None = None,
    ) -> None:
        self.steps, self.loss, self.since, self.values = steps, loss, since, values

    def look(self, loss: float, weights: Weights, steps: int) -> bool:
        """Take in the loss after `steps` more steps; True where the run should end."""
        if loss < self.loss:
            self.loss, self.since = loss, 0
            self.values = {name: np.array(value, np.float32) for name, value in weights.items()}
            return False
        self.since += steps
        return self.since >= self.steps

    def dump(self) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
        """As JSON values and arrays, for a checkpoint; nothing where no run has looked."""
        if self.values is None:
            return {}, {}
        arrays = {f"patience/{name}": value for name, value in self.values.items()}
        return {"loss": self.loss, "since": self.since}, arrays

    @classmethod
    def load(cls, steps: int, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> EarlyStopping:
        """What `dump` gave; the patience comes from the present configuration."""
        held = {
            name.removeprefix("patience/"): array.copy()
            for name, array in arrays.items()
            if name.startswith("patience/")
        }
        return cls(steps, values.get("loss", math.inf), values.get("since", 0), held or None)
