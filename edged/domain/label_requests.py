"""Which labels to ask for, where only few can be had.

Part of the requests is drawn at random, the rest goes to samples on which the model is unsure, that look
unlike those asked about before, and whose class is rare. Uncertainty alone asks about the same noisy
border again and again, and never notices a change where the model is sure: Žliobaitė, Bifet, Pfahringer &
Holmes, "Active learning with drifting streaming data", IEEE TNNLS 25 (2014), whose split strategy this
follows; diversity and rarity are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.domain.standardise import RunningMoments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.predictions import Predictions

RECENT_SCORES = 512
ASKED_KEPT = 64
HALF_LIFE = 2000
SAVED_UP = 20.0  # requests that a budget not spent may grow to
DAY = 86400.0


class LabelRequests:
    """Chooses samples to ask about, within a budget.

    Parameters
    ----------
    share
        Requests per sample, on average; 0 for none.
    random
        Part of the requests that is drawn at random.
    per_day
        Most requests within 24 hours; None for no such limit.
    seed
        Of everything random.
    """

    def __init__(
        self, share: float, *, random: float = 0.5, per_day: int | None = None, seed: int = 0
    ) -> None:
        self._share, self._random, self._per_day = share, random, per_day
        self._rng = np.random.default_rng(seed)
        self._tokens = 1.0
        self._day_began, self._today = float("-inf"), 0
        self._scores = np.zeros(RECENT_SCORES)
        self._scored = 0
        self._moments = RunningMoments(HALF_LIFE)
        self._asked: NDArray[np.float64] | None = None
        self._asked_count = 0
        self._frequency: NDArray[np.float64] | None = None
        self.requested = 0

    def choose(self, made: Predictions, x: NDArray[np.float32], now: float) -> NDArray[np.bool_]:
        """Whether to ask for each of these samples, `(n,)`.

        `x` `(n, d)` are their inputs, `made` what the model answered, `now` seconds of a clock that
        never goes back.
        """
        chosen = np.zeros(len(x), np.bool_)
        if self._share <= 0 or len(x) == 0:
            return chosen
        self._moments.update(x)
        mean, scale = self._moments.scale()
        z = np.clip(np.nan_to_num((x - mean) * scale), -10, 10).astype(np.float64)
        score = self._uncertainty(made) * self._rarity(made) * self._rng.uniform(0.75, 1.25, len(x))
        lucky = self._rng.random(len(x)) < self._share * self._random
        for i in range(len(x)):
            self._tokens = min(self._tokens + self._share, SAVED_UP)
            worth = score[i] * self._novelty(z[i])
            wanted = lucky[i] or self._stands_out(worth)
            if wanted and self._tokens >= 1.0 and self._allowed(now):
                chosen[i] = True
                self._tokens -= 1.0
                self._today += 1
                self.requested += 1
                self._remember(z[i])
        return chosen

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

    def _novelty(self, z: NDArray[np.float64]) -> float:
        """Distance from the nearest sample asked about lately, as a share of the usual one; at most 1."""
        if self._asked is None:
            return 1.0
        kept = self._asked[: min(self._asked_count, ASKED_KEPT)]
        nearest = float(np.sqrt(((kept - z) ** 2).mean(axis=1).min()))
        return min(1.0, 0.25 + nearest)

    def _stands_out(self, worth: float) -> bool:
        """Whether a score is among the highest of the newest ones, as many as the budget allows."""
        held = min(self._scored, RECENT_SCORES)
        limit = float("inf")
        if held >= 50:
            place = max(0, int(held * (1.0 - self._share * (1.0 - self._random))) - 1)
            limit = float(np.partition(self._scores[:held], place)[place])
        self._scores[self._scored % RECENT_SCORES] = worth
        self._scored += 1
        return worth > limit

    def _allowed(self, now: float) -> bool:
        if now - self._day_began >= DAY:
            self._day_began, self._today = now, 0
        return self._per_day is None or self._today < self._per_day

    def _remember(self, z: NDArray[np.float64]) -> None:
        if self._asked is None:
            self._asked = np.zeros((ASKED_KEPT, len(z)))
        self._asked[self._asked_count % ASKED_KEPT] = z
        self._asked_count += 1
