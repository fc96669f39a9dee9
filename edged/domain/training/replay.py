"""Replay memory: which old samples are kept to be learned from again, and how batches are mixed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edged.domain.arrays import Ints
from edged.domain.json_fields import JsonObject


class Reservoir:
    """A uniform sample of everything seen, of bounded size (Vitter 1985, algorithm R).

    >>> memory = Reservoir(3)
    >>> memory.add(np.arange(2), np.random.default_rng(0)); memory.ids.tolist()
    [0, 1]
    """

    def __init__(self, capacity: int, ids: Ints | None = None, seen: int = 0) -> None:
        self.capacity = capacity
        self.ids: Ints = np.empty(0, np.int64) if ids is None else np.asarray(ids, np.int64)[:capacity]
        self.seen = max(seen, len(self.ids))

    def add(self, ids: Ints, rng: np.random.Generator) -> None:
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

    def state(self) -> JsonObject:
        """Return the state as JSON values, without `ids`."""
        return {"capacity": self.capacity, "seen": self.seen}


# How many samples the short memory reaches back, as a multiple of those it holds; and what stays anyway.
SPAN, LEAST_PART = 1.5, 10


class Recent:
    """The newest samples that were learned, oldest first.

    A reservoir forgets the order of time: after a change most of it is of the world before. This short
    memory is all of the world now. Ints count samples, so where few of them get labels it holds fewer: none
    that came more than `SPAN` times its capacity before the newest, but for a tenth of the capacity.

    >>> recent = Recent(2)
    >>> recent.add(np.arange(3)); recent.ids.tolist()
    [1, 2]
    >>> recent = Recent(20)
    >>> recent.add(np.arange(0, 200, 10)); recent.ids.tolist()
    [170, 180, 190]
    >>> recent.add(np.array([5000])); recent.ids.tolist()
    [190, 5000]
    """

    def __init__(self, capacity: int, ids: Ints | None = None) -> None:
        self.capacity = capacity
        self.ids: Ints = _last(np.empty(0, np.int64) if ids is None else np.asarray(ids, np.int64), capacity)

    def add(self, ids: Ints) -> None:
        """Take in new ids, oldest first."""
        kept = _last(np.concatenate([self.ids, ids]), self.capacity)
        if len(kept):
            near = kept > kept.max() - SPAN * self.capacity
            near[max(0, len(kept) - self.capacity // LEAST_PART) :] = True
            kept = kept[near]
        self.ids = kept

    def shorten(self, count: int) -> None:
        """Keep only so many of the newest: what came before is of a world that has changed."""
        self.ids = _last(self.ids, count)


def _last(ids: Ints, count: int) -> Ints:
    kept: Ints = ids[max(0, len(ids) - count) :].copy()
    return kept


@dataclass(frozen=True)
class BatchMix:
    """Shares of a batch: new samples, and those of the short memory; the rest is of the reservoir."""

    new: float
    recent: float = 0.0

    def counts(self, batch: int, new: int, recent: int, remembered: int) -> tuple[int, int, int]:
        """Rows of a batch from each group, given how many rows the groups have.

        At least one new row is in every batch. What an empty group would give falls to the reservoir, to
        the short memory, or to the new rows, in this order.

        >>> BatchMix(0.25, 0.25).counts(64, 100, 1000, 5000)
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
