"""Sensors that stand still: a feature that used to move and has not for too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOVES = 10  # a feature must have moved so often before: a constant is no broken sensor
PATIENCE = 10  # times its longest rest so far: a door is not stuck because it stays shut overnight
MOST_KEYS = 4096
MOST_BYTES = 8 * 1024**2
_BYTES = 4 + 4 + 4 + 4 + 1  # of one feature of one key
_FIRST_KEYS = 64


@dataclass(frozen=True)
class StuckSensor:
    """Features (their positions) of one key that have stopped, or have begun to move again."""

    key: str
    stuck: bool
    features: tuple[int, ...]


class FlatlineDetector:
    """Watches every feature of every key, whole batches at a time.

    A feature is stuck when it has not changed for `after` readings of its key, and for ten times as long as
    it ever rested before; it must have moved ten times. Memory is bounded: of very many keys only the
    first are watched. `width` is the number of features `d`.

    >>> watch = FlatlineDetector(width=1, after=3)
    >>> x = np.arange(12, dtype=np.float32).reshape(-1, 1)
    >>> watch.update(["k"] * 12, x)
    []
    >>> watch.update(["k"] * 12, np.full((12, 1), 11, np.float32))
    [StuckSensor(key='k', stuck=True, features=(0,))]
    """

    def __init__(self, width: int, after: int) -> None:
        self._after = after
        self._most = max(1, min(MOST_KEYS, MOST_BYTES // (_BYTES * width)))
        self._slots: dict[str, int] = {}
        size = (min(_FIRST_KEYS, self._most), width)
        self._last = np.full(size, np.nan, np.float32)
        self._still = np.zeros(size, np.int32)  # readings since the last change
        self._longest = np.zeros(size, np.int32)  # of the rests that ended
        self._moves = np.zeros(size, np.int32)
        self._stuck = np.zeros(size, bool)

    @property
    def stuck(self) -> int:
        """Features that are stuck now, over all keys."""
        return int(self._stuck.sum())

    def update(self, keys: Sequence[str], x: NDArray[np.float32]) -> list[StuckSensor]:
        """Follow readings `x` `(n, d)` in order of arrival; what has changed about being stuck."""
        slots = np.array([self._slot(key) for key in keys], np.int64)
        order = np.argsort(slots, kind="stable")
        order = order[np.searchsorted(slots[order], 0) :]  # without keys that are not watched
        if len(order) == 0:
            return []
        slots, x = slots[order], x[order]
        heads = np.flatnonzero(np.diff(slots, prepend=-1))
        here = slots[heads]
        before = np.empty_like(x)
        before[1:] = x[:-1]
        before[heads] = self._last[here]
        self._last[here] = x[np.append(heads[1:], len(x)) - 1]
        return self._follow(here, heads, x != before, np.isnan(before))

    def _follow(
        self,
        here: NDArray[np.int64],
        heads: NDArray[np.int64],
        moved: NDArray[np.bool_],
        first: NDArray[np.bool_],
    ) -> list[StuckSensor]:
        """Count rests and moves of the groups that begin at `heads`; `moved` and `first` are `(n, d)`."""
        n = len(moved)
        place = np.arange(n)[:, None]
        changes = np.where(moved, place, -1)
        # The last change before each row, within its group; rests that began earlier reach back beyond it.
        starts = np.repeat(heads, np.diff(np.append(heads, n)))[:, None]
        carried = np.repeat(self._still[here], np.diff(np.append(heads, n)), axis=0)
        newest = np.maximum.accumulate(changes, axis=0)
        earlier = np.vstack([np.full((1, moved.shape[1]), -1), newest[:-1]])
        rest = np.where(earlier >= starts, place - earlier - 1, carried + place - starts)
        ended = np.where(moved & ~first, rest, 0)
        self._longest[here] = np.maximum(self._longest[here], np.maximum.reduceat(ended, heads, axis=0))
        self._moves[here] += np.add.reduceat((moved & ~first).astype(np.int32), heads, axis=0)
        last = np.append(heads[1:], n) - 1
        since = np.where(newest[last] >= heads[:, None], last[:, None] - newest[last], -1)
        total = self._still[here] + (last - heads + 1)[:, None]
        self._still[here] = np.where(since >= 0, since, total)
        return self._changes(here)

    def _changes(self, here: NDArray[np.int64]) -> list[StuckSensor]:
        still = self._still[here]
        patience = np.maximum(self._after, PATIENCE * self._longest[here].astype(np.int64))
        stuck = (still >= patience) & (self._moves[here] >= MOVES)
        was = self._stuck[here]
        freed = was & (still < self._after)
        now = (was | stuck) & ~freed
        self._stuck[here] = now
        rows = np.flatnonzero((now != was).any(axis=1))
        if len(rows) == 0:
            return []
        names = {slot: key for key, slot in self._slots.items()}
        return [
            StuckSensor(names[int(here[row])], found, tuple(np.flatnonzero(change).tolist()))
            for row in rows
            for found, change in ((True, now[row] & ~was[row]), (False, freed[row]))
            if change.any()
        ]

    def _slot(self, key: str) -> int:
        """Row of a key; -1 when there are too many."""
        slot = self._slots.get(key)
        if slot is not None:
            return slot
        slot = len(self._slots)
        if slot >= self._most:
            return -1
        self._slots[key] = slot
        if slot >= len(self._last):
            self._grow()
        return slot

    def _grow(self) -> None:
        more = min(2 * len(self._last), self._most) - len(self._last)
        width = self._last.shape[1]
        self._last = np.vstack([self._last, np.full((more, width), np.nan, np.float32)])
        self._still, self._longest, self._moves = (
            np.vstack([old, np.zeros((more, width), np.int32)])
            for old in (self._still, self._longest, self._moves)
        )
        self._stuck = np.vstack([self._stuck, np.zeros((more, width), bool)])
