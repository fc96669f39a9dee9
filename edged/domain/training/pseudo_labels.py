"""Pseudo-labels: answers that are as good as labels, for samples that have none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

PRECISION = 0.95  # share of right answers above the threshold
FEWEST = 30
JUDGED = 300  # newest held-out labels by which the threshold is found
NEWEST = 1000  # samples without a label that are looked at


def threshold(confidence: NDArray[np.float32], right: NDArray[np.bool_]) -> float | None:
    """The smallest confidence above which answers are right often enough; None where there is none.

    Parameters
    ----------
    confidence, right
        Of answers to held-out samples whose labels are known, `(n,)`.

    Examples
    --------
    >>> confidence = np.linspace(0, 1, 101, dtype=np.float32)
    >>> round(threshold(confidence, confidence > 0.5), 2)
    0.49
    """
    order = np.argsort(-confidence, kind="stable")
    wrong = np.cumsum(~right[order])
    good = wrong <= (1.0 - PRECISION) * np.arange(1, len(order) + 1)
    # Of equal confidence all count or none.
    ends = np.r_[np.diff(confidence[order]) != 0, True] if len(order) else np.zeros(0, bool)
    usable = np.flatnonzero(good & ends)
    usable = usable[usable >= FEWEST - 1]
    return float(confidence[order[usable[-1]]]) if len(usable) else None


@dataclass(frozen=True)
class PseudoLabels:
    """Samples `offsets` `(n,)`, rising, with the classes `y` `(n, 1)` that stand for their labels in one run.

    D.-H. Lee: Pseudo-label, the simple and efficient semi-supervised learning method for deep neural networks
    (ICML workshop 2013).
    """

    offsets: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    y: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 1), np.float32))

    def dump(self) -> dict[str, NDArray[np.generic]]:
        """As arrays, for a checkpoint."""
        return {"pseudo_offsets": self.offsets, "pseudo_y": self.y}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[np.generic]]) -> PseudoLabels | None:
        """What `dump` gave; None where there is nothing of it."""
        if "pseudo_offsets" not in arrays:
            return None
        return cls(arrays["pseudo_offsets"].astype(np.int64), arrays["pseudo_y"].astype(np.float32))
