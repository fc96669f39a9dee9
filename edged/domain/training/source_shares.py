"""How much of what is learned and judged by one source of labels may give: not suddenly most of it."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARE = 0.25  # of the rows that any source may give
TIMES = 2.0  # times its usual share that it may
KNOWN = 200  # labels from which usual shares follow


def within_shares(sources: NDArray[np.int64], usual: Mapping[int, int]) -> NDArray[np.bool_]:
    """Which of some labels to take, `(n,)`, so that no source gives far more than its usual share.

    `sources` `(n,)` are numbers, 0 for one that is not known, which is not bounded; `usual` are the labels
    that each gave before. A source gives a quarter of the rows, or twice its usual share if that is more; a
    quarter of its own labels in any case. What is too much is left out evenly.

    >>> within_shares(np.array([1, 2, 2, 2, 2, 2, 2, 2]), {1: 500}).astype(int).tolist()
    [1, 1, 0, 0, 0, 0, 0, 1]
    """
    within, known = np.ones(len(sources), bool), sum(usual.values())
    if known < KNOWN:
        return within
    for source in set(sources.tolist()) - {0}:
        most = max(SHARE, TIMES * usual.get(source, 0) / known)
        own = np.flatnonzero(sources == source)
        if most >= 1.0:
            continue
        allowed = max(ceil(SHARE * len(own)), int(most / (1.0 - most) * (len(sources) - len(own))))
        if len(own) > allowed:
            within[own] = False
            within[own[np.linspace(0, len(own) - 1, allowed).round().astype(int)]] = True
    return within
