"""What a resident trainer has read of remembered samples, most of which are the same in its next run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from edged.domain.protocols import StoredRows
    from edged.domain.stream.sample import Window
    from edged.domain.training.replay import Ids

    Keys = Sequence[str | None]


class RowCache:
    """Rows of `samples` that stay in memory between runs, as most of them are the same in the next.

    The result is the same with and without what was kept.
    """

    def __init__(self, samples: StoredRows) -> None:
        self._samples = samples
        self._held: Window | None = None
        self._relabelled = -1

    def rows(self, offsets: Ids, relabelled: int) -> Window:
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


class KeyCache:
    """Keys of `samples` as numbers, kept between runs: the key of a sample never changes.

    A sample that is deleted after its key was read keeps its number.
    """

    def __init__(self, samples: StoredRows) -> None:
        self._samples = samples
        self._offsets, self._codes = np.empty(0, np.int64), np.empty(0, np.int64)
        self._names: dict[str, int] = {}

    def codes(self, offsets: Ids) -> Ids:
        """As `codes_of` the keys of these samples, which are numbered by their oldest ones here."""
        wanted, place = np.unique(offsets, return_inverse=True)
        if len(self._names) > len(wanted):  # most of them are gone
            self._offsets, self._codes, self._names = self._offsets[:0], self._codes[:0], {}
        held = np.isin(self._offsets, wanted)
        fresh = wanted[~np.isin(wanted, self._offsets)]
        both = np.concatenate([self._offsets[held], fresh])
        codes = np.concatenate([self._codes[held], _numbered(self._samples.keys(fresh), self._names)])
        order = np.argsort(both, kind="stable")
        self._offsets, self._codes = both[order], codes[order]
        return _renumbered(self._codes)[place]


def codes_of(keys: Keys) -> Ids:
    """A number for each key, equal ones for equal keys, from 0 as they come; -1 for None.

    >>> codes_of(["a", "b", None, "a"]).tolist()
    [0, 1, -1, 0]
    """
    return _numbered(keys, {})


def _numbered(keys: Iterable[str | None], names: dict[str, int]) -> Ids:
    """Numbers of keys, those of new ones noted in `names`."""
    return np.array([-1 if key is None else names.setdefault(key, len(names)) for key in keys], np.int64)


def _renumbered(codes: Ids) -> Ids:
    """The same groups, numbered from 0 as they come; negative ones stay."""
    there = codes >= 0
    _, first, place = np.unique(codes[there], return_index=True, return_inverse=True)
    numbers = np.argsort(np.argsort(first))
    renumbered: Ids = codes.copy()
    renumbered[there] = numbers[place]
    return renumbered
