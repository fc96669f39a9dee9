"""Replay memory: which old samples are kept to be learned from again, and how batches are mixed."""

from __future__ import annotations

from dataclasses import dataclass
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


class Recent:
    """The newest samples that were learned, oldest first.

    A reservoir forgets the order of time: after a change most of it is of the world before. This short
    memory is all of the world now.

    >>> recent = Recent(2)
    >>> recent.add(np.arange(3)); recent.ids.tolist()
    [1, 2]
    """

    def __init__(self, capacity: int, ids: Ids | None = None) -> None:
        self.capacity = capacity
        self.ids: Ids = _last(np.empty(0, np.int64) if ids is None else np.asarray(ids, np.int64), capacity)

    def add(self, ids: Ids) -> None:
        """Take in new ids, oldest first."""
        self.ids = _last(np.concatenate([self.ids, ids]), self.capacity)


def _last(ids: Ids, count: int) -> Ids:
    kept: Ids = ids[max(0, len(ids) - count) :].copy()
    return kept


@dataclass(frozen=True)
class Mix:
    """Shares of a batch: new samples, and those of the short memory; the rest is of the reservoir."""

    new: float
    recent: float = 0.0

    def counts(self, batch: int, new: int, recent: int, remembered: int) -> tuple[int, int, int]:
        """Rows of a batch from each group, given how many rows the groups have.

        At least one new row is in every batch. What an empty group would give falls to the reservoir, to
        the short memory, or to the new rows, in this order.

        >>> Mix(0.25, 0.25).counts(64, 100, 1000, 5000)
        (16, 16, 32)
        """
        fresh = min(batch, max(1, round(batch * self.new))) if new else 0
        near = min(batch - fresh, round(batch * self.recent)) if recent else 0
        old = batch - fresh - near
        if remembered:
            return fresh, near, old
        if recent and (near or not new):
            return fresh, near + old, 0
        return (batch, 0, 0) if new else (0, 0, 0)
