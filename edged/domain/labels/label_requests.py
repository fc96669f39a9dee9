"""Choice of the labels to ask for, where only few can be had.

The stream is cut into slots of as many samples as one request has to last for, and each slot brings one
request, so that the budget is spent evenly. Part of the slots ask about a random sample, the others about
the one that stands out: on which the model is unsure, that looks unlike those asked about lately, and whose
class is rare. Uncertainty alone asks about the same noisy border again and again and never notices a change
where the model is sure (Žliobaitė, Bifet, Pfahringer & Holmes, "Active learning with drifting streaming
data", IEEE TNNLS 25, 2014, whose split strategy this follows); so diversity and rarity are added. No sample
of the holdout is chosen because it stands out: what judges models has to be like the stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edged.domain.judging.predictions import Predictions
from edged.domain.seeded_rng import SeededRng, is_holdout
from edged.domain.stream.running_statistics import RunningMoments

ASKED_KEPT = 64
HALF_LIFE = 2000
DAY = 86400.0
SURE_MARGIN = 0.99  # between the two likeliest classes, from which on a label would teach nothing
UNDECIDED = 8.0  # more than all else is worth: added where the set is not a single class


class LabelRequests:
    """Chooses samples to ask about, within a budget.

    `share` is requests per sample, on average, of which the part `random` is drawn at random; `holdout` the
    share of samples that is kept for judging; `per_day` the most requests within 24 hours, None for any.
    `at_random` are those offsets of the last call of `choose` that were drawn at random.
    """

    def __init__(
        self,
        share: float,
        *,
        random: float = 0.3,
        holdout: float = 0.1,
        per_day: int | None = None,
        seed: int = 0,
    ) -> None:
        self._share, self._random, self._holdout, self._per_day = share, random, holdout, per_day
        self._draws = SeededRng(seed)
        self._budget = 0.0
        self._day_began, self._today = float("-inf"), 0
        self._moments = RunningMoments(HALF_LIFE)
        self._asked: NDArray[np.float32] | None = None
        self._frequency: NDArray[np.float64] | None = None
        self.requested = 0
        self.at_random: set[int] = set()
        self._begin_slot()

    @property
    def active(self) -> bool:
        """True if any labels are asked for."""
        return self._share > 0

    @property
    def waiting(self) -> int:
        """Samples of the present slot: any of them may still be asked for."""
        return self._passed

    def choose(self, made: Predictions, x: NDArray[np.float32], now: float) -> list[int]:
        """Offsets to ask for, of these samples or of those that came shortly before, rising.

        `x` `(n, d)` are the inputs of the samples that `made` answers, `now` seconds of a clock that
        never goes back.
        """
        self.at_random.clear()
        if self._share <= 0 or len(x) == 0:
            return []
        self._moments.update(x)
        if self._moments.mean is None:
            return []
        mean, scale = self._moments.scale()
        z = np.clip(np.nan_to_num((x - mean) * scale), -10, 10).astype(np.float32)
        worth = self._uncertainty(made) * self._rarity(made)
        worth[made.undecided] += UNDECIDED
        worth[is_holdout(made.offsets, self._holdout)] = -1.0
        chosen, start = [], 0
        while start < len(x):
            end = min(len(x), start + max(1, math.ceil((1.0 - self._budget) / self._share - 1e-9)))
            self._look(made.offsets[start:end], worth[start:end], z[start:end])
            self._budget += self._share * (end - start)
            if self._budget >= 1.0 - 1e-9:
                self._budget -= 1.0
                if self._allowed(now):
                    chosen.append(self._ask())
                self._begin_slot()
            start = end
        return chosen

    def refund(self) -> None:
        """Do not count a chosen sample as requested: it brought its own label."""
        self._today -= 1
        self.requested -= 1

    def _begin_slot(self) -> None:
        self._at_random = bool(self._draws.uniform(1)[0] < self._random)
        self._passed, self._found, self._best = 0, -1, -math.inf

    def _look(self, offsets: NDArray[np.int64], worth: NDArray[np.float64], z: NDArray[np.float32]) -> None:
        """Take in more samples of the present slot; keeps the one that would be asked for now."""
        self._passed += len(offsets)
        if self._at_random:
            if self._draws.uniform(1)[0] < len(offsets) / self._passed:
                place = int(self._draws.integers(len(offsets), 1)[0])
                self._found, self._z = int(offsets[place]), z[place]
            return
        standing_out = worth * self._novelty(z)
        place = int(standing_out.argmax())
        if standing_out[place] > self._best:
            self._best, self._found, self._z = float(standing_out[place]), int(offsets[place]), z[place]

    def _ask(self) -> int:
        before = np.empty((0, len(self._z)), np.float32) if self._asked is None else self._asked
        self._asked = np.concatenate([before[1 - ASKED_KEPT :], self._z[None]])
        self._today += 1
        self.requested += 1
        if self._at_random:
            self.at_random.add(self._found)
        return self._found

    def _uncertainty(self, made: Predictions) -> NDArray[np.float64]:
        """One minus the margin between the two most probable classes; 1/2 where there are no classes."""
        if made.confidence is None or made.output.shape[1] < 2:
            return np.full(len(made.offsets), 0.5)
        best = np.partition(np.nan_to_num(made.output.astype(np.float64)), -2, axis=1)[:, -2:]
        return np.asarray(1.0 - (best[:, 1] - best[:, 0]))

    def _rarity(self, made: Predictions) -> NDArray[np.float64]:
        """Above 1 for answers that are seldom given, at most 2."""
        if made.confidence is None:
            return np.ones(len(made.offsets))
        classes = max(2, made.output.shape[1])
        if self._frequency is None:
            self._frequency = np.full(classes, 1.0 / classes)
        answer = np.nan_to_num(made.answers[:, 0]).astype(np.int64)
        counts = np.bincount(answer, minlength=classes)[:classes]
        keep = 0.5 ** (len(answer) / HALF_LIFE)
        self._frequency = keep * self._frequency + (1 - keep) * counts / len(answer)
        return np.asarray(np.clip((classes * self._frequency[answer]) ** -0.5, 0.5, 2.0))

    def _novelty(self, z: NDArray[np.float32]) -> NDArray[np.float64]:
        """Distance of rows `(n, d)` from the nearest sample asked about lately, between 1/4 and 1."""
        if self._asked is None:
            return np.ones(len(z))
        square = (z**2).sum(axis=1)[:, None] + (self._asked**2).sum(axis=1) - 2.0 * (z @ self._asked.T)
        nearest = np.maximum(square.min(axis=1), 0.0) / z.shape[1]
        return np.asarray(np.minimum(1.0, 0.25 + np.sqrt(nearest)), np.float64)

    def _allowed(self, now: float) -> bool:
        if now - self._day_began >= DAY:
            self._day_began, self._today = now, 0
        return self._per_day is None or self._today < self._per_day


def in_order(margins: Sequence[float], random: Sequence[bool]) -> list[int]:
    """Places of requests, those first of which the model is least sure by now.

    Then come those that were drawn at `random`: they keep the labels that judge models like the stream, so
    the model may be sure of them. Of the others, those it has become sure of are left out, unless there is
    nothing else.

    >>> in_order([0.9, 0.1, 0.995, 0.2, 0.999], [False, False, False, True, True])
    [1, 0, 3, 4]
    >>> in_order([1.0, 0.995], [False, False])
    [1, 0]
    """
    by_margin = sorted(range(len(margins)), key=lambda at: (random[at], margins[at]))
    open_still = [at for at in by_margin if random[at] or margins[at] < SURE_MARGIN]
    return open_still or by_margin
