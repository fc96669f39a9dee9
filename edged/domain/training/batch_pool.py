"""Replay memories, the pool that the batches of a run are drawn from, and what a key or a source may fill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.arrays import Doubles, Flags, Floats, Ints
from edged.domain.json_fields import JsonObject
from edged.domain.protocols import StoredRows
from edged.domain.stream.sample import Window
from edged.errors import NoDataError

SOURCE_SHARE = 0.25  # of the rows that any source may give
SOURCE_TIMES = 2.0  # times its usual share that it may
KNOWN_LABELS = 200  # labels from which usual shares follow


# ---- memories: samples that are learned from again -------------------------------------------------


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


# ---- the pool of a run -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Remembered:
    """Samples that are learned from again: their rows, and which of them each memory holds, by offset."""

    rows: Window
    recent: Ints
    reservoir: Ints


@dataclass(frozen=True)
class LabelForm:
    """The form in which a loss takes labels, for a model with so many outputs."""

    loss: str
    outputs: int

    def of(self, y: Floats) -> NDArray[Any]:
        """Return labels `(n, targets)` in this form.

        `(n,)` int64 for cross-entropy; for bce_with_logits with several outputs one-hot `(n, outputs)`.
        """
        if self.loss == "cross_entropy":
            return y[:, 0].astype(np.int64)
        if self.loss == "bce_with_logits" and y.shape[1] == 1 < self.outputs:
            return np.eye(self.outputs, dtype=np.float32)[y[:, 0].astype(np.int64)]
        return y


class BatchPool:
    """New and remembered rows side by side, and which of them may be drawn.

    `x` `(n, d)`, `y` in the form that the loss takes, `offsets` `(n,)`.
    """

    def __init__(
        self,
        new: Window,
        remembered: Remembered,
        labels: LabelForm,
        excluded: set[int],
    ) -> None:
        rows = remembered.rows.take(~np.isin(remembered.rows.offsets, new.offsets))
        self.x = np.concatenate([new.x, rows.x])
        self.y = labels.of(np.concatenate([new.y, rows.y]))
        self.offsets = np.concatenate([new.offsets, rows.offsets])
        is_new = np.arange(len(self.offsets)) < len(new)
        self._groups = (
            is_new,
            ~is_new & np.isin(self.offsets, remembered.recent),
            ~is_new & np.isin(self.offsets, remembered.reservoir),
        )
        self._codes: Ints | None = None
        self._share = 1.0
        self.exclude(excluded)

    def cap(self, codes: Ints, share: float) -> None:
        """Let no key be expected to fill more than `share` of a batch; `codes` `(n,)` name the keys."""
        self._codes, self._share = codes, share
        self._weigh()

    def exclude(self, offsets: set[int]) -> None:
        """Draw these samples no more; NoDataError when none is left."""
        good = ~np.isin(self.offsets, list(offsets))
        self._places = [np.flatnonzero(good & group) for group in self._groups]
        if not any(len(places) for places in self._places):
            raise NoDataError("every sample of this run makes the loss infinite or NaN", where="sample log")
        self._weigh()

    def draw(self, batch: int, mix: BatchMix, rng: np.random.Generator) -> Ints:
        """Rows of a batch, drawn with replacement, so that short windows still fill it."""
        counts = mix.counts(batch, *(len(places) for places in self._places))
        drawn = []
        for places, edges, count in zip(self._places, self._edges, counts, strict=True):
            if edges is None:
                drawn.append(places[rng.integers(0, max(len(places), 1), count)])
            else:
                drawn.append(places[np.searchsorted(edges, rng.random(count) * edges[-1], side="right")])
        return np.concatenate(drawn)

    def _weigh(self) -> None:
        self._edges = [self._edges_of(places) for places in self._places]

    def _edges_of(self, rows: Ints) -> Doubles | None:
        """Return where each row's stretch ends; None where all stretches are equal."""
        if len(rows) == 0 or self._codes is None:
            return None
        shares = capped(self._codes[rows], self._share)
        return None if shares is None else np.cumsum(shares)


def capped(codes: Ints, share: float) -> Doubles | None:
    """With which probability each row is drawn, so that no key is expected to fill more than `share`.

    What the largest keys give up goes to the others in proportion. With so few keys that the cap could
    hold for all of them only by making them equal, or not at all, there is none.

    `codes` `(n,)` are equal numbers for rows of equal keys. Gives `(n,)` of sum 1, or None where drawing them
    all alike keeps to the share, or there are too few keys.

    >>> capped(np.array([0, 0, 0, 0, 0, 0, 1, 2]), 0.5).round(3).tolist()
    [0.083, 0.083, 0.083, 0.083, 0.083, 0.083, 0.25, 0.25]
    """
    _, place, counts = np.unique(codes, return_inverse=True, return_counts=True)
    part = counts / max(len(codes), 1)
    if len(counts) * share <= 1.0 or part.max() <= share:
        return None
    full = np.zeros(len(counts), bool)
    while (part[~full] > share + 1e-12).any():
        full |= part > share
        part[full] = share
        rest = part[~full]
        part[~full] = rest * (1.0 - share * full.sum()) / rest.sum()
    return np.asarray((part / counts)[place], np.float64)


# ---- rows that are kept between runs --------------------------------------------------------------


class RowCache:
    """Rows of `samples` that stay in memory between runs, as most of them are the same in the next.

    The result is the same with and without what was kept.
    """

    def __init__(self, samples: StoredRows) -> None:
        self._samples = samples
        self._held: Window | None = None
        self._relabelled = -1

    def rows(self, offsets: Ints, relabelled: int) -> Window:
        """The rows of these rising offsets that are there.

        `relabelled` counts labels that replaced an earlier one: all are read again when it has changed.
        """
        held = self._held
        if held is None or relabelled != self._relabelled:
            held = self._samples.rows(offsets)
        else:
            held = held.take(np.isin(held.offsets, offsets))
            fresh = self._samples.rows(offsets[~np.isin(offsets, held.offsets)])
            both = held.followed_by(fresh)
            held = both.take(np.argsort(both.offsets, kind="stable"))
        self._held, self._relabelled = held, relabelled
        return held


def codes_of(keys: Iterable[str | None]) -> Ints:
    """A number for each key, equal ones for equal keys, from 0 as they come; -1 for None.

    >>> codes_of(["a", "b", None, "a"]).tolist()
    [0, 1, -1, 0]
    """
    names: dict[str, int] = {}
    return np.array([-1 if key is None else names.setdefault(key, len(names)) for key in keys], np.int64)


# ---- sources of labels ---------------------------------------------------------------------------


def within_shares(sources: Ints, usual: Mapping[int, int]) -> Flags:
    """Choose labels `(n,)` bool, so that no source gives far more than its usual share.

    `sources` `(n,)` are numbers, 0 for one that is not known, which is not bounded; `usual` are the labels
    that each gave before. A source gives a quarter of the rows, or twice its usual share if that is more; a
    quarter of its own labels in any case. What is too much is left out evenly.

    >>> within_shares(np.array([1, 2, 2, 2, 2, 2, 2, 2]), {1: 500}).astype(int).tolist()
    [1, 1, 0, 0, 0, 0, 0, 1]
    """
    within, known = np.ones(len(sources), bool), sum(usual.values())
    if known < KNOWN_LABELS:
        return within
    for source in set(sources.tolist()) - {0}:
        most = max(SOURCE_SHARE, SOURCE_TIMES * usual.get(source, 0) / known)
        own = np.flatnonzero(sources == source)
        if most >= 1.0:
            continue
        allowed = max(ceil(SOURCE_SHARE * len(own)), int(most / (1.0 - most) * (len(sources) - len(own))))
        if len(own) > allowed:
            within[own] = False
            within[own[np.linspace(0, len(own) - 1, allowed).round().astype(int)]] = True
    return within
