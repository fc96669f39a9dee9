"""Whether labels can be trusted: whether any model explains them as well as models did before.

When labels become noise, the holdout's labels are noise, too: no model can be right about them, and a
comparison of two models on them says little. A change of the world looks alike at first, but can be learned:
then the candidate, which has seen it, is clearly better than the champion. So labels are suspected when even
the better of the two is much worse than has been usual, *and* the candidate is not clearly better. Then the
candidate is refused; after some such verdicts in a row training pauses, for longer each time, with one trial
after each pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.judging.verdict import Verdict
from edged.domain.outcomes import suspect_labels
from edged.domain.stream.quantiles import quantiles

if TYPE_CHECKING:
    from edged.domain.json_fields import JsonObject
    from edged.domain.stream.schema import Task

REMEMBERED = 50  # verdicts from which the usual error follows
NEEDED = 10  # of them, before anything is suspected
QUANTILE = 0.75  # of their errors: what is usual on a bad day
MARGIN = 0.1  # accuracy points above it, three standard errors at least
FACTOR = 2.0  # for values: so many times the usual error
CLEARLY = 0.1  # for values: a gain, as a share of the champion's error, that noise does not give
PATIENCE = 25
"""Suspicious verdicts in a row before training pauses: after a change of the world that turns everything
round it takes a thousand labels until the holdout is all of the new one, and a pause would keep the candidate
from learning it."""
FIRST_PAUSE = 5  # times as many new labels as start a run otherwise
LONGEST_PAUSE = 20


@dataclass
class LabelTrust:
    """Follows the verdicts on the candidates of one stream.

    `usual` holds the errors of the better model at earlier verdicts, oldest first; `suspicious` counts
    verdicts in a row that found the labels unexplained, `pauses` the pauses since the last one that did not.

    Examples
    --------
    >>> trust = LabelTrust("classify")
    >>> def verdict(error):
    ...     numbers = {"candidate_error": error, "champion_error": error, "gain": 0.0, "holdout": 200.0}
    ...     return Verdict(True, ("as good",), numbers)
    >>> all(trust.review(verdict(0.1)).accepted for _ in range(20))
    True
    >>> any(trust.review(verdict(0.5)).accepted for _ in range(25)), trust.pause()
    (False, 5)
    """

    task: Task
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    suspicious: int = 0
    pauses: int = 0

    def review(self, verdict: Verdict) -> Verdict:
        """The verdict, refused where the labels cannot be trusted.

        Only for labels that someone gives: where the stream labels itself, and where nothing was compared,
        the verdict stays as it is.
        """
        numbers = verdict.numbers
        if self.task not in ("classify", "regress") or "candidate_error" not in numbers:
            return verdict
        error = min(numbers["candidate_error"], numbers["champion_error"])
        limit = self._limit(numbers["holdout"])
        if limit is None or error <= limit or self._clearly_better(numbers):
            self.usual.append(error)
            self.suspicious = self.pauses = 0
            return verdict
        self.suspicious += 1
        if self.pauses:
            # A level that lasts through the pauses becomes the usual one in the end.
            self.usual.append(error)
        reason = suspect_labels(self.task, error, limit)
        return Verdict(False, (*verdict.reasons, reason), {**numbers, "usual_limit": limit})

    def pause(self) -> int | None:
        """After a review: how long training should rest now; None when it should not.

        In multiples of the new labels that start a run, so that it fits fast streams and slow ones.
        """
        if self.suspicious < PATIENCE:
            return None
        self.pauses += 1
        return int(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.pauses - 1, 10)))

    def _limit(self, n: float) -> float | None:
        if len(self.usual) < NEEDED:
            return None
        usual = float(quantiles(np.array(self.usual), [QUANTILE])[0])
        if self.task == "regress":
            return FACTOR * usual
        return usual + max(MARGIN, 3.0 * _standard_error(usual, n))

    def _clearly_better(self, numbers: Mapping[str, float]) -> bool:
        if self.task == "regress":
            return numbers["gain"] >= CLEARLY
        return numbers["gain"] >= 2.0 * _standard_error(numbers["candidate_error"], numbers["holdout"])

    def dump(self) -> JsonObject:
        """Return the state as JSON values."""
        return {"usual": list(self.usual), "suspicious": self.suspicious, "pauses": self.pauses}

    @classmethod
    def load(cls, task: Task, values: Mapping[str, Any] | None) -> LabelTrust:
        """Restore the state that `dump` returned; None: begin without any."""
        if not values:
            return cls(task)
        return cls(task, deque(values["usual"], REMEMBERED), values["suspicious"], values["pauses"])


def _standard_error(share: float, n: float) -> float:
    """Return the standard error of a share found in `n` samples."""
    return float(np.sqrt(max(share * (1.0 - share), 1e-4) / max(n, 1.0)))
