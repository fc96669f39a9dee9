"""What the batches of a run are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.replay import draw
from edged.domain.shares import capped
from edged.errors import NoDataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from edged.domain.sample import Window


class Pool:
    """New and remembered rows side by side, and which of them may be drawn.

    `x` `(n, d)`, `y` as the loss takes it (`labels` makes it of `(n, targets)`), `offsets` `(n,)`.
    """

    def __init__(
        self, new: Window, remembered: Window, labels: Callable[[Any], Any], excluded: set[int]
    ) -> None:
        again = np.isin(remembered.offsets, new.offsets)
        remembered = remembered.take(~again)
        self.x = np.concatenate([new.x, remembered.x])
        self.y = labels(np.concatenate([new.y, remembered.y]))
        self.offsets = np.concatenate([new.offsets, remembered.offsets])
        self._is_new = np.arange(len(self.offsets)) < len(new)
        self._codes: NDArray[np.int64] | None = None
        self._share = 1.0
        self.exclude(excluded)

    def cap(self, codes: NDArray[np.int64], share: float) -> None:
        """Let no key be expected to fill more than `share` of a batch; `codes` `(n,)` name the keys."""
        self._codes, self._share = codes, share
        self._weigh()

    def exclude(self, offsets: set[int]) -> None:
        """Draw these samples no more; NoDataError when none is left."""
        good = ~np.isin(self.offsets, list(offsets)) if offsets else np.ones(len(self.offsets), bool)
        self._new = np.flatnonzero(good & self._is_new)
        self._old = np.flatnonzero(good & ~self._is_new)
        self._weigh()
        if len(self._new) + len(self._old) == 0:
            raise NoDataError("every sample of this run makes the loss infinite or NaN", where="sample log")

    def draw(self, batch: int, new_share: float, rng: np.random.Generator) -> NDArray[np.int64]:
        """Rows of a batch, of which a share is new."""
        fresh, old = draw(len(self._new), len(self._old), batch, new_share, rng)
        for drawn, edges in ((fresh, self._new_edges), (old, self._old_edges)):
            if edges is not None:
                drawn[:] = np.searchsorted(edges, rng.random(len(drawn)) * edges[-1], side="right")
        return np.concatenate([self._new[fresh], self._old[old]])

    def _weigh(self) -> None:
        self._new_edges, self._old_edges = self._edges(self._new), self._edges(self._old)

    def _edges(self, rows: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Where each row's stretch of [0, 1) ends; None where all stretches are equal."""
        if self._codes is None or len(rows) == 0:
            return None
        weights = capped(self._codes[rows], self._share)
        return None if weights is None else np.cumsum(weights)


def labels_for(loss: str, y: NDArray[np.float32], outputs: int) -> NDArray[Any]:
    """Labels `(n, targets)` as the loss takes them.

    `(n,)` int64 for cross-entropy; for bce_with_logits with several outputs one-hot `(n, outputs)`.
    """
    if loss == "cross_entropy":
        return y[:, 0].astype(np.int64)
    if loss == "bce_with_logits" and y.shape[1] == 1 < outputs:
        return np.eye(outputs, dtype=np.float32)[y[:, 0].astype(np.int64)]
    return y
