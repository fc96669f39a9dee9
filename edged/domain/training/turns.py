"""Whose turn it is where learners share one trainer: the one that gains most and has waited longest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

URGENT = 2.0  # what a drift counts, in runs' worth of labels
PATIENCE = 60.0  # seconds of waiting that count as much as the labels of a run
MOST_RUNS = 4.0  # runs' worth of labels beyond which more of them give no further claim


@dataclass(frozen=True)
class Waiting:
    """A learner that may train: `key` None is the stream's own model.

    `new` labels were not learned yet, and `needed` start a run. `urgent` after a drift or a fall of quality.
    `since` is the monotonic time at which it came to wait.
    """

    key: str | None
    new: int
    needed: float
    urgent: bool = False
    since: float = 0.0

    def claim(self, now: float) -> float:
        """How strong its claim is at the monotonic time `now`: runs' worth of labels, drift, and waiting."""
        gain = min(MOST_RUNS, self.new / max(1.0, self.needed))
        return gain + URGENT * self.urgent + max(0.0, now - self.since) / PATIENCE


def next_turn(waiting: Iterable[Waiting], now: float) -> Waiting | None:
    """The learner whose turn it is; None where nobody waits.

    Labels count up to `MOST_RUNS` alone and waiting counts without limit, so that no flood of one key starves
    the others. Of equal claims the one that has waited longest goes first.

    >>> flood, quiet = Waiting("a", 4000, 40, since=590.0), Waiting("b", 40, 40, since=0.0)
    >>> next_turn([flood, quiet], now=600.0).key, next_turn([flood, quiet], now=60.0).key
    ('b', 'a')
    """
    return max(waiting, key=lambda one: (one.claim(now), -one.since, one.key is None), default=None)
