"""A challenger beside the champion, on labels that came before either had learned from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from edged.domain.judging.paired_test import compare

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.stream.schema import Task

    Errors = NDArray[np.float64]

ROWS = 1000  # after which a challenger that has not won is given up
FEWEST = 40
WINNING = 0.001  # significance: the contest is looked at again and again while it goes on
LOSING = 0.05


@dataclass(frozen=True)
class ContestErrors:
    """Errors of a challenger, who is the candidate, and of the champion on the same rows, oldest first."""

    candidate: tuple[float, ...]
    champion: tuple[float, ...]


class ChallengerTest:
    """Errors `(n,)` of both models on the same rows, oldest first: new labels are tested first, learned then.

    >>> contest = ChallengerTest()
    >>> contest.add(np.zeros(60), np.r_[np.ones(30), np.zeros(30)]); contest.outcome("classify")
    'won'
    """

    def __init__(self, challenger: Errors | None = None, champion: Errors | None = None) -> None:
        self.challenger = np.zeros(0) if challenger is None else np.asarray(challenger, np.float64)
        self.champion = np.zeros(0) if champion is None else np.asarray(champion, np.float64)

    def add(self, challenger: Errors, champion: Errors) -> None:
        """Take in errors `(n,)` of both on new labels; rows without a finite error do not count."""
        usable = np.isfinite(challenger) & np.isfinite(champion)
        self.challenger = np.concatenate([self.challenger, challenger[usable]])
        self.champion = np.concatenate([self.champion, champion[usable]])

    def dump(self) -> ContestErrors:
        """Return the errors as JSON values."""
        return ContestErrors(tuple(self.challenger.tolist()), tuple(self.champion.tolist()))

    def outcome(self, task: Task) -> Literal["won", "lost", "open"]:
        """Whether the challenger is better beyond chance, has no prospect any more, or neither."""
        if len(self.champion) < FEWEST:
            return "open"
        found = compare(task, self.challenger, self.champion)
        if found.p_better < WINNING:
            return "won"
        return "lost" if found.p_worse < LOSING or len(self.champion) >= ROWS else "open"
