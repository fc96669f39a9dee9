"""Promises of predictions: sets of classes, or intervals of values, that contain the truth in a fixed share.

Like adaptive conformal inference (Gibbs & Candès 2021) this follows the misses and supposes nothing about the
model or the stream. Adaptive conformal inference learns of a miss when the label comes: where labels are
hundreds of samples late it corrects too long, and then corrects that. Here each set enters the account at
once, with the probability of a miss that the model itself sees; the label replaces it by what was true. That
probability is no guess where a set has no class, or all of them. The sum of misses, less those that were
promised, sets the share of misses of the next row (integral control; see Angelopoulos, Candès & Tibshirani,
"Conformal PID control for time series prediction", 2023). In that sum misses fade: what could not be foreseen
is made up for while it is recent, or it would spoil the time after. What stays is learned slowly.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.arrays import Doubles, Flags, Floats
from edged.domain.json_fields import JsonObject
from edged.domain.stream.schema import Schema
from edged.errors import CorruptError

ROWS = 200  # newest rows whose probabilities, or errors, a threshold is drawn from
FEWEST = 20  # errors of values, before which there is no interval
FEW = 3.0  # misses too many that divide the share of misses of the next row by e
PART, PARTS = 50, 10  # rows that are one sum of misses, and how many sums are remembered
MOST = 30.0  # misses too many or too few in such a sum
FADING = 1.0 - np.arange(PARTS) / PARTS  # how much a miss counts, by the age of its sum
LASTING = 2500  # rows in which an excess that stays is learned
HALF_LIFE, PRIOR = 1000, 30.0  # labels, and misses, that the model's idea of its misses is corrected by
USUAL = 1.25  # times more or fewer misses than it thinks: for that there is the account
KEEP = 0.5 ** (1 / HALF_LIFE)
TOP = 8  # most probable classes of a row from which a threshold is drawn


@dataclass(frozen=True)
class Promise:
    """The sets of `n` predictions, of which the share `coverage` contains the truth.

    `sets` is `(n, classes)` bool, which classes are in, or `(n, targets, 2)` float32, the least and the
    greatest value of each target. `expected` `(n, targets)` float32 is the probability of a miss as it
    entered the account, NaN where nothing is promised; classes are one target.
    """

    coverage: float
    sets: NDArray[Any]
    expected: Floats

    @property
    def of_classes(self) -> bool:
        """True if the sets are of classes."""
        return self.sets.dtype == bool

    @property
    def made(self) -> Flags:
        """Rows `(n,)` with a set: before there are labels, values have no intervals."""
        return np.asarray(np.isfinite(self.expected).all(axis=1))

    @property
    def undecided(self) -> Flags:
        """Rows `(n,)` whose set is not a single class; of values none."""
        if not self.of_classes:
            return np.zeros(len(self.sets), bool)
        return np.asarray(self.made & (self.sets.sum(axis=1) != 1))

    def covers(self, y: Floats) -> Flags:
        """Return which sets contain the labels `y` `(n, targets)`: `(n, targets)`; no set has a new class."""
        if self.of_classes:
            last = self.sets.shape[1] - 1
            inside = np.take_along_axis(self.sets, np.minimum(y, last).astype(np.int64), axis=1)
            return np.asarray(inside & (y <= last))
        return np.asarray((self.sets[:, :, 0] <= y) & (y <= self.sets[:, :, 1]))

    def rows(self, which: Any) -> Promise:
        """Return the sets of some rows."""
        return Promise(self.coverage, self.sets[which], self.expected[which])

    def classes(self, row: int) -> list[int]:
        """The classes in the set of a row, by index."""
        return [at for at, inside in enumerate(self.sets[row].tolist()) if inside]


class MissAccount:
    """Misses of one target beyond those that were promised, as far as known: the older the less they count.

    >>> account = MissAccount(0.9); account.book(1.0); round(account.misses, 1)
    0.9
    """

    def __init__(self, coverage: float) -> None:
        self._promised = 1.0 - coverage
        self._rows = 0
        self.sums = np.zeros(PARTS)  # the newest first
        self.lasting = self.misses = 0.0
        """What is learned of an excess that stays, and misses too many of late; negative where too few."""

    @property
    def next_share(self) -> float:
        """The share of misses that the next row may have: 1 or more for nothing else."""
        return self._promised * exp(-(self.misses + self.lasting) / FEW)

    def book(self, expected: float) -> None:
        """A set that misses with this probability."""
        if self._rows % PART == 0:
            self.restore(np.concatenate([[0.0], self.sums[:-1]]), self.lasting)
        self._rows += 1
        self.correct(expected - self._promised)
        self.lasting = max(-MOST, min(MOST, self.lasting + self.misses / LASTING))

    def correct(self, more: float) -> None:
        """There were `more` misses than were booked. However late that is known, it is new."""
        before = float(self.sums[0])
        self.sums[0] = now = max(-MOST, min(MOST, before + more))
        self.misses += now - before

    def restore(self, sums: Doubles, lasting: float) -> None:
        """Go on from these."""
        self.sums, self.lasting, self.misses = sums, lasting, float(sums @ FADING)


class SelfTrust:
    """By what factor sets miss more often than the model thinks: of those with some of the classes, not all.

    Of labels the older count less: half after `HALF_LIFE`. Before there are many it is near 1.
    """

    def __init__(self) -> None:
        self.happened, self.thought = PRIOR, PRIOR

    @property
    def factor(self) -> float:
        """Misses that happened for each that was thought to happen, as far as that is beyond `USUAL`."""
        found = self.happened / self.thought
        return found / max(1 / USUAL, min(USUAL, found))

    def add(self, missed: bool, thought: float) -> None:
        """A set that was thought to miss with this probability, and whether it did."""
        self.happened = PRIOR + KEEP * (self.happened - PRIOR) + missed
        self.thought = PRIOR + KEEP * (self.thought - PRIOR) + thought


class PredictionSets:
    """Makes the sets of a stream's predictions, and learns from late labels how often they contain the truth.

    One thread at a time, but `state` from any.
    """

    def __init__(self, coverage: float, schema: Schema) -> None:
        self.coverage = coverage
        self._classes = schema.task == "classify"
        width = 1 if self._classes else schema.targets
        self._accounts = [MissAccount(coverage) for _ in range(width)]
        # Probabilities of the newest rows, or errors of the newest labels: `(rows, classes or targets)`.
        self._newest: Floats | None = None
        self._limits, self._since = ([0.0], [1.0]), 0
        self._trust = SelfTrust()

    def promise(self, output: Floats) -> Promise:
        """The sets of predictions `(n, k)`, probabilities or values; rows that are not finite have none."""
        finite = np.isfinite(output).all(axis=1)
        make = self._sets if self._classes else self._intervals
        some, expected_of_some = make(output[finite])
        sets = np.zeros((len(output), *some.shape[1:]), some.dtype)
        expected = np.full((len(output), len(self._accounts)), np.nan, np.float32)
        sets[finite], expected[finite] = some, expected_of_some
        return Promise(self.coverage, sets, expected)

    def learn(self, promise: Promise, answers: Floats, y: Floats) -> Flags:
        """Learn labels `y` `(n, targets)` of predictions `answers` `(n, targets)`.

        Returns `(m, targets)`: of those that were promised, which sets contained the label.
        """
        if not self._classes:
            self._remember(np.abs(y - answers))
        promise, y = promise.rows(promise.made), y[promise.made]
        covered = promise.covers(y)
        columns = zip(self._accounts, covered.T.tolist(), promise.expected.T.tolist(), strict=True)
        for account, inside, expected in columns:
            for within, booked in zip(inside, expected, strict=True):
                account.correct((not within) - booked)
                if self._classes and 0.0 < booked < 1.0:
                    self._trust.add(not within, booked / self._trust.factor)
        return covered

    def forget_rows(self) -> None:
        """Forget what was kept of single samples and labels, but not the account; from any thread."""
        self._newest = None
        self._limits, self._since = ([0.0], [1.0]), 0

    # ---- classes ---------------------------------------------------------------------------

    def _sets(self, p: Floats) -> tuple[NDArray[Any], Floats]:
        """The classes that are at least as probable as a limit, which follows the account from row to row."""
        self._remember(p)
        self._since += len(p)
        newest = self._newest
        if newest is not None and 10 * self._since >= len(newest) > 0:  # not for each single sample
            self._limits, self._since = _limits(newest), 0
        falling, reached = self._limits
        account, classes, factor = self._accounts[0], p.shape[1], self._trust.factor
        rising = np.sort(p, axis=1)
        outside = np.concatenate([np.zeros((len(p), 1), np.float32), np.cumsum(rising, axis=1)], axis=1)
        limits, expected = np.empty(len(p)), np.empty((len(p), 1), np.float32)
        for i, (row, missed) in enumerate(zip(rising.tolist(), outside.tolist(), strict=True)):
            share, limit = account.next_share, np.inf
            if share < 1:
                limit = falling[min(bisect_left(reached, 1.0 - share / factor), len(falling) - 1)]
            left = bisect_left(row, limit)
            miss = 1.0 if left == classes else min(missed[left] * factor, 0.99)
            account.book(miss)
            limits[i], expected[i, 0] = limit, miss
        return np.asarray(p >= limits[:, None]), expected

    # ---- values ----------------------------------------------------------------------------

    def _intervals(self, values: Floats) -> tuple[NDArray[Any], Floats]:
        """Values more and less a quantile of the newest errors, which follows the account from row to row."""
        errors = self._newest
        n = 0 if errors is None else len(errors)
        half, expected = np.full((2, *values.shape), np.nan, np.float32)
        if errors is not None and n >= FEWEST:
            for target, account in enumerate(self._accounts):
                # One more than there are errors: the next one may be above them all.
                widths = [0.0, *np.sort(errors[:, target]).tolist()]
                for i in range(len(values)):
                    rank = round((1.0 - account.next_share) * (n + 1))
                    rank = max(0, min(n, rank))
                    half[i, target], miss = widths[rank], 1.0 - rank / (n + 1)
                    expected[i, target] = miss
                    account.book(miss)
        return np.stack([values - half, values + half], axis=2), expected

    def _remember(self, rows: Floats) -> None:
        rows = rows[np.isfinite(rows).all(axis=1)][-ROWS:]
        before = self._newest
        if before is None or before.shape[1] != rows.shape[1]:
            before = rows[:0]
        self._newest = np.concatenate([before[max(0, len(before) + len(rows) - ROWS) :], rows])

    def _fits(self, newest: Floats | None) -> bool:
        if newest is None:
            return True
        if newest.ndim != 2 or not np.isfinite(newest).all():
            return False
        return self._classes or newest.shape[1] == len(self._accounts)

    # ---- restarts --------------------------------------------------------------------------

    def state(self) -> JsonObject:
        """Return the state as JSON values, for `restore`."""
        newest = self._newest
        return {
            "coverage": self.coverage,
            "misses": [[*account.sums.tolist(), account.lasting] for account in self._accounts],
            "trust": [self._trust.happened, self._trust.thought],
            "newest": None if newest is None else newest.tolist(),
        }

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned, unless another share was promised then.

        Raises CorruptError when it is something else.
        """
        try:
            coverage, misses = float(state["coverage"]), np.asarray(state["misses"], np.float64)
            trust = np.asarray(state["trust"], np.float64)
            newest = None if state["newest"] is None else np.asarray(state["newest"], np.float32)
        except (LookupError, TypeError, ValueError) as problem:
            raise CorruptError(f"account of misses is damaged: {problem}") from problem
        whole = misses.shape == (len(self._accounts), PARTS + 1) and bool((np.abs(misses) <= MOST).all())
        whole = whole and trust.shape == (2,) and bool((trust >= PRIOR).all() and np.isfinite(trust).all())
        if not whole or not self._fits(newest):
            raise CorruptError("account of misses is damaged")
        if coverage != self.coverage:
            return
        for account, known in zip(self._accounts, misses, strict=True):
            account.restore(known[:-1], float(known[-1]))
        self._trust.happened, self._trust.thought = trust.tolist()
        self._newest = newest


def _limits(newest: Floats) -> tuple[list[float], list[float]]:
    """Probabilities of classes, falling, and the share of rows `(n, k)` whose truth is at least so probable.

    It is what the model expects of itself: no label is needed for that.
    """
    if newest.shape[1] > TOP:
        newest = np.partition(newest, -TOP, axis=1)[:, -TOP:]
    falling = np.sort(newest, axis=None)[::-1].astype(np.float64)
    return falling.tolist(), (np.cumsum(falling) / len(newest)).tolist()
