"""Replay memory: which old samples are kept to be learned from again, and how batches are mixed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class Reservoir:
    """A uniform sample of everything seen, of bounded size (Vitter 1985, algorithm R).

    >>> memory = Reservoir(3)
    >>> memory.add(np.arange(2), np.random.default_rng(0)); memory.ids.tolist()
    [0, 1]
    """

    def __init__(self, capacity: int, ids: Ids | None = None, seen: int = 0) -> None:
        self.capacity = capacity
        self.ids: Ids = np.empty(0, np.int64) if ids is None else np.asarray(ids, np.int64)[:capacity]
        self.seen = max(seen, len(self.ids))

    def add(self, ids: Ids, rng: np.random.Generator) -> None:
        """Offer new ids, oldest first."""
        if self.capacity == 0:
            return
        room = max(0, self.capacity - len(self.ids))
        self.ids = np.concatenate([self.ids, ids[:room]])
        self.seen += min(room, len(ids))
        rest = ids[room:]
        if len(rest) == 0:
            return
        places = rng.integers(0, self.seen + 1 + np.arange(len(rest)))
        self.seen += len(rest)
        for place, new in zip(places.tolist(), rest.tolist(), strict=True):
            if place < self.capacity:
                self.ids[place] = new

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside `ids`."""
        return {"capacity": self.capacity, "seen": self.seen}


def draw(
    new: int, remembered: int, batch: int, new_share: float, rng: np.random.Generator
) -> tuple[Ids, Ids]:
    """Row numbers of one batch: some of the `new` rows, the rest of the `remembered` ones.

    Drawn with replacement, so that short windows still fill a batch. At least one new row is in
    every batch; without memory all rows are new.
    """
    fresh = batch if remembered == 0 else min(batch, max(1, round(batch * new_share)))
    if new == 0:
        fresh = 0
    old = batch - fresh if remembered else 0
    return rng.integers(0, max(new, 1), fresh), rng.integers(0, max(remembered, 1), old)
