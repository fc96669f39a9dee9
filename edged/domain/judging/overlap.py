"""Windows that share readings say the same twice: only those that lie apart are evidence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.protocols import Holdout, PlacedHoldout
    from edged.domain.stream.sample import Window
    from edged.domain.stream.windowing import WindowRules

READ = 2  # times as many rows as are wanted are read, as some go


def apart(keys: NDArray[np.int64], places: NDArray[np.int64], block: int) -> NDArray[np.bool_]:
    """Which of these windows to keep, so that of each key none is closer than `block` to another.

    The paired test takes samples to be independent. One of each block of windows that overlap is kept, the
    newest first, as in the subsampling of dependent data (Politis, Romano and Wolf 1999). `keys` `(n,)` are
    equal numbers for equal keys; `places` `(n,)` say which window of its key each is, counted from any.

    >>> apart(np.zeros(5, np.int64), np.array([1, 2, 4, 5, 9]), 2).tolist()
    [False, True, False, True, True]
    """
    keep = np.zeros(len(keys), bool)
    last: dict[int, int] = {}
    for i in np.argsort(-places, kind="stable").tolist():
        key, place = int(keys[i]), int(places[i])
        if last.get(key, place + block) - place >= block:
            keep[i] = True
            last[key] = place
    return keep


class NonOverlappingHoldout:
    """A holdout of windows of which none overlaps another; see `block_of` for `block`."""

    def __init__(self, holdout: PlacedHoldout, block: int) -> None:
        self._holdout, self._block = holdout, block

    def training_window(self, after_seq: int, limit: int, *, upto_seq: int | None = None) -> Window:
        """Labelled samples of the training role: these are no evidence, and all there."""
        return self._holdout.training_window(after_seq, limit, upto_seq=upto_seq)

    def holdout_window(self, limit: int, *, before_seq: int | None = None) -> Window:
        """Read the newest holdout samples, oldest first."""
        found = self._thinned(self._holdout.holdout_window(READ * limit, before_seq=before_seq))
        return found.take(np.arange(max(0, len(found) - limit), len(found)))

    def older_holdout(self, limit: int, before_seq: int, seed: int, *, after_seq: int = 0) -> Window:
        """A sample of those between two positions."""
        return self._thinned(self._holdout.older_holdout(limit, before_seq, seed, after_seq=after_seq))

    def places(self, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Keys and places of samples, as `apart` takes them."""
        return self._holdout.places(offsets)

    def _thinned(self, window: Window) -> Window:
        return window.take(apart(*self.places(window.offsets), self._block))


def judged_on(holdout: PlacedHoldout, rules: WindowRules | None) -> Holdout:
    """What candidates are judged on: without windows that overlap, where samples are windows that do."""
    return NonOverlappingHoldout(holdout, block_of(rules)) if block_of(rules) > 1 else holdout


def block_of(rules: WindowRules | None) -> int:
    """Windows of a key from one to the next that shares no reading with it; 1 where none overlap."""
    return 1 if rules is None else math.ceil(rules.size / rules.stride)
