"""Paired comparison: two models' errors on the same samples, and how far chance explains the difference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import erfc, exp, lgamma, log, sqrt

import numpy as np

from edged.domain.arrays import Doubles, Flags, Ints, quantiles
from edged.domain.protocols import Holdout, PlacedHoldout
from edged.domain.seeded_rng import SeededRng
from edged.domain.stream.sample import Window
from edged.domain.stream.schema import Task
from edged.domain.stream.windowing import WindowRules

EXACT = 1000  # pairs that differ, up to which the binomial distribution is summed up
RESAMPLES = 2000
BLOCK_ROWS = 100  # consecutive rows that are drawn together
ROWS_AT_ONCE = 250  # resamples drawn together: bounds the memory
READ_TIMES = 2  # times as many rows as are wanted are read, as some go


@dataclass(frozen=True)
class PairedComparison:
    """The candidate beside the champion on `n` samples.

    On `wins` of them its error is smaller, on `losses` larger, on `both` the same. `gain` is in accuracy
    for classes, a share of the champion's error otherwise. `p_worse` is the p-value of the one-sided test
    that it is worse: small where chance does not explain its losses; `p_better` the same for its wins.
    `candidate` and `champion` are the mean errors of both.
    """

    n: int
    both: int
    wins: int
    losses: int
    gain: float
    p_worse: float
    p_better: float
    candidate: float
    champion: float


def compare(task: Task, candidate: Doubles, champion: Doubles) -> PairedComparison:
    """Compare errors `(n,)`, n > 0: McNemar's exact test for classes, a seeded paired bootstrap for values.

    >>> found = compare("classify", np.array([0.0, 0, 0, 0]), np.array([1.0, 1, 1, 0]))
    >>> (found.wins, found.losses, found.both, found.gain, found.p_better)
    (3, 0, 1, 0.75, 0.125)
    """
    difference = champion - candidate
    wins, losses = int((difference > 0).sum()), int((difference < 0).sum())
    gain = float(difference.mean())
    if task == "classify":
        p_worse, p_better = mcnemar(losses, wins), mcnemar(wins, losses)
    else:
        gain /= max(float(champion.mean()), 1e-12)
        p_worse, p_better = bootstrap(difference)
    return PairedComparison(
        n=len(difference),
        both=len(difference) - wins - losses,
        wins=wins,
        losses=losses,
        gain=gain,
        p_worse=p_worse,
        p_better=p_better,
        candidate=float(candidate.mean()),
        champion=float(champion.mean()),
    )


def mcnemar(more: int, fewer: int) -> float:
    """One-sided p-value: that of `more + fewer` pairs that differ at least `more` do so in one direction.

    Exact binomial up to `EXACT` pairs, beyond by the normal distribution with continuity correction.

    Sources: Q. McNemar, Psychometrika 12 (1947); for classifiers T. G. Dietterich: Approximate statistical
    tests for comparing supervised classification learning algorithms. Neural Computation 10 (1998).

    >>> mcnemar(5, 0), mcnemar(0, 0)
    (0.03125, 1.0)
    """
    n = more + fewer
    if n > EXACT:
        return 0.5 * erfc((more - 0.5 - n / 2) / sqrt(n / 2))
    tail = sum(exp(_log_choose(n, k) - n * log(2.0)) for k in range(more, n + 1))
    return min(1.0, round(tail, 12))


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def bootstrap(difference: Doubles) -> tuple[float, float]:
    """P-values that the mean of paired differences `(n,)` is below 0, and above, from `RESAMPLES` resamples.

    Source: B. Efron, R. Tibshirani: An introduction to the bootstrap (1993), chapter 16; counted with the
    sample itself, so that no p-value is 0.
    """
    draws = SeededRng(0)
    n, above, below = len(difference), 1, 1
    for _ in range(RESAMPLES // ROWS_AT_ONCE):
        means = difference[draws.integers(n, ROWS_AT_ONCE * n).reshape(ROWS_AT_ONCE, n)].mean(axis=1)
        above += int((means >= 0).sum())
        below += int((means <= 0).sum())
    return above / (RESAMPLES + 1), below / (RESAMPLES + 1)


def block_bootstrap(difference: Doubles) -> tuple[float, float]:
    """95 % interval of the mean of `difference` `(n,)`, for errors that come in bursts.

    Whole blocks of consecutive rows are drawn, so that neighbours which err together stay together.
    Künsch, "The jackknife and the bootstrap for general stationary observations", Annals of Statistics 17
    (1989), in its form with blocks that do not overlap (Carlstein 1986).

    >>> low, high = block_bootstrap(np.ones(1000))
    >>> low == high == 1.0
    True
    """
    count = max(1, len(difference) // BLOCK_ROWS)
    sums = np.array([part.sum() for part in np.array_split(difference, count)])
    lengths = np.array([len(part) for part in np.array_split(difference, count)])
    drawn = SeededRng(0).integers(count, RESAMPLES * count).reshape(RESAMPLES, count)
    means = sums[drawn].sum(axis=1) / lengths[drawn].sum(axis=1)
    low, high = quantiles(means, [0.025, 0.975])
    return float(low), float(high)


# ---- rows that do not overlap --------------------------------------------------------------------


def apart(keys: Ints, places: Ints, block: int) -> Flags:
    """Choose windows `(n,)` bool, so that of each key none is closer than `block` to another.

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
        found = self._thinned(self._holdout.holdout_window(READ_TIMES * limit, before_seq=before_seq))
        return found.take(np.arange(max(0, len(found) - limit), len(found)))

    def older_holdout(self, limit: int, before_seq: int) -> Window:
        """Read a sample of those before a position, spread evenly."""
        return self._thinned(self._holdout.older_holdout(limit, before_seq))

    def places(self, offsets: Ints) -> tuple[Ints, Ints]:
        """Keys and places of samples, as `apart` takes them."""
        return self._holdout.places(offsets)

    def _thinned(self, window: Window) -> Window:
        return window.take(apart(*self.places(window.offsets), self._block))


def judged_on(holdout: PlacedHoldout, rules: WindowRules | None) -> Holdout:
    """Return the holdout that candidates are judged on, without overlapping windows."""
    return NonOverlappingHoldout(holdout, block_of(rules)) if block_of(rules) > 1 else holdout


def block_of(rules: WindowRules | None) -> int:
    """Windows of a key from one to the next that shares no reading with it; 1 where none overlap."""
    return 1 if rules is None else math.ceil(rules.size / rules.stride)
