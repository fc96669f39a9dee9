"""How hard the next runs learn: harder after a drift, gentler after forgetting and where little is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edged.domain.training.training_run import RunOptions

# Part of the share of new rows that is left where no answer is wrong; from this error on it is whole.
LEAST_PART, WHOLE_FROM = 0.3, 0.15


def emphasis(share: float, error: float) -> float:
    """The share of new rows in a batch while so many answers, from 0 to 1, are wrong.

    New rows come in one situation, which pulls at all that was learned in others. Where nearly all of them
    are answered rightly before they are learned, there is little to gain by that.

    >>> [round(emphasis(0.25, error), 3) for error in (0.0, 0.05, 0.15, 0.5)]
    [0.075, 0.133, 0.25, 0.25]
    """
    return share * (LEAST_PART + (1 - LEAST_PART) * min(1.0, error / WHOLE_FROM))


@dataclass
class LearningPolicy:
    """What the next runs ask for beyond the configuration.

    After a drift `runs` runs learn at `rate` times the learning rate, with batches of which at least
    `share` is new: the memory counts for less, but it is never thrown away. After a candidate that has
    forgotten the next run replays more: half the share of new rows, and half again each time, not below
    `least`. Otherwise the share follows the live error, where that is known (`emphasis`).

    >>> policy = LearningPolicy(); policy.drifted(); policy.options(1e-3, 0.25).to_json()
    {'learning_rate': 0.002, 'new_share': 0.5}
    """

    rate: float = 2.0
    share: float = 0.5
    runs: int = 5
    least: float = 0.05
    left: int = 0
    forgotten: int = 0

    def drifted(self) -> None:
        """Learn harder after a drift."""
        self.left = self.runs

    def judged(self, *, forgets: bool) -> None:
        """The gate has judged a candidate."""
        self.forgotten = self.forgotten + 1 if forgets else 0

    def options(self, rate: float, share: float, error: float | None = None) -> RunOptions:
        """Options of the next run, for the configured learning rate and share of new rows.

        `error` is the share of the newest answers that were wrong; None where that is not known.
        """
        usual = share if error is None else emphasis(share, error)
        options = RunOptions(new_share=None if usual == share else usual)
        if self.left:
            self.left -= 1
            options = replace(options, learning_rate=rate * self.rate, new_share=max(share, self.share))
        if self.forgotten:
            options = replace(options, new_share=min(usual, max(self.least, share / 2**self.forgotten)))
        return options
