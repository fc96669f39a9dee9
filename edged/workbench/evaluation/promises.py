"""How sure the predictions of a replay were and what their sets promised, against what came true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.workbench.evaluation.figures import PromiseFigures

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.judging.predictions import Predictions
    from edged.workbench.recordings.stream import Stream

WINDOW = 2000


class PromiseMeter:
    """Collects confidence and sets of predictions by row of a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.promised: float | None = None
        self.confidence = np.full(len(stream), np.nan)
        # By row and target: whether the set contained the truth, and how many classes, or how wide it was.
        self._covered = np.full((len(stream), stream.y.shape[1]), np.nan)
        self._size = np.full((len(stream), stream.y.shape[1]), np.nan)

    def add(self, index: NDArray[np.int64], made: Predictions) -> None:
        """Record the predictions of these rows."""
        if made.confidence is not None:
            self.confidence[index] = made.confidence
        promise = made.promise
        if promise is None:
            return
        self.promised = promise.coverage
        known = promise.made & self._stream.known[index]
        index, promise = index[known], promise.rows(known)
        self._covered[index] = promise.covers(self._stream.y[index])
        sets = promise.sets
        size = sets.sum(axis=1, keepdims=True) if promise.of_classes else sets[:, :, 1] - sets[:, :, 0]
        self._size[index] = size

    def figures(self, rows: NDArray[np.int64]) -> PromiseFigures | None:
        """What came of it on these rows; None where nothing was promised."""
        rows = rows[np.isfinite(self._covered[rows]).all(axis=1)]
        if self.promised is None or len(rows) == 0:
            return None
        covered, size = self._covered[rows], self._size[rows].mean(axis=0)
        shares = running_shares(covered)
        return PromiseFigures(
            promised=self.promised,
            covered=float(covered.mean()),
            size=tuple(size.tolist()) if len(size) > 1 else float(size[0]),
            empty=float((self._size[rows] == 0).mean()),
            window=min(WINDOW, len(rows)),
            lowest=float(shares.min()),
            highest=float(shares.max()),
        )


def running_shares(covered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares of `covered` `(n, targets)` in any `WINDOW` consecutive rows, or in all: `(m, targets)`."""
    width = min(WINDOW, len(covered))
    sums = np.concatenate([np.zeros((1, covered.shape[1])), covered.cumsum(axis=0)])
    return np.asarray((sums[width:] - sums[:-width]) / width)
