"""How hard the next runs learn: harder after a drift, with more replay after forgetting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Effort:
    """What the next runs ask for beyond the configuration.

    After a drift `runs` runs learn at `rate` times the learning rate, with batches of which at least
    `share` is new: the memory counts for less, but it is never thrown away. After a candidate that has
    forgotten the next run replays more: half the share of new rows, and half again each time, not below
    `least`. After a severe drift a run with a fresh start beside the learner is asked for, until one ends.

    >>> effort = Effort(); effort.drifted(); effort.options(1e-3, 0.25)
    {'learning_rate': 0.002, 'new_share': 0.5}
    """

    rate: float = 2.0
    share: float = 0.5
    runs: int = 5
    least: float = 0.05
    left: int = 0
    forgotten: int = 0
    challenge: bool = False

    def drifted(self) -> None:
        """A drift has been signalled."""
        self.left = self.runs

    def judged(self, *, forgets: bool) -> None:
        """The gate has judged a candidate."""
        self.forgotten = self.forgotten + 1 if forgets else 0
        self.challenge = False

    def options(self, rate: float, share: float) -> dict[str, Any]:
        """Options of the next run, for the configured learning rate and share of new rows."""
        options: dict[str, Any] = {}
        if self.left:
            self.left -= 1
            options = {"learning_rate": rate * self.rate, "new_share": max(share, self.share)}
        if self.forgotten:
            options["new_share"] = max(self.least, share / 2**self.forgotten)
        if self.challenge:
            options["challenge"] = True
        return options
