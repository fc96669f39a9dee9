"""Whose turn it is where several learners share one trainer: a rule over what each would gain.

>>> waiting = [Waiting("a", 0.0, RunGain(1.0)), Waiting("b", 5.0, RunGain(3.0))]
>>> next_turn(waiting, now=10.0).name
'b'
>>> next_turn([*waiting, Waiting("c", 10.0, RunGain(1.0, asked=True))], now=10.0).name
'c'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ENOUGH = 10.0  # times the labels that start a run: more make it no more urgent
DRIFTED = 10.0  # what a drift, or quality that has fallen, adds: the model is wrong now
ASKED = 20.0  # what a command adds: somebody waits for the answer
PATIENCE = 60.0  # seconds of waiting that count as much as the labels of one run


@dataclass(frozen=True)
class RunGain:
    """What a run would gain.

    `labels` are those not yet learned, in times of what starts a run. `drifted`: a drift was signalled, or
    live quality has fallen. `asked`: a command has asked for it.
    """

    labels: float = 1.0
    drifted: bool = False
    asked: bool = False

    @property
    def urgency(self) -> float:
        """How urgent a run is when it begins to wait; bounded, so that waiting longer always wins."""
        return min(self.labels, ENOUGH) + DRIFTED * self.drifted + ASKED * self.asked


@dataclass(frozen=True)
class Waiting:
    """A learner that waits for the trainer since `since` (monotonic seconds).

    `name` is that of a stream, empty for the only one.
    """

    name: str
    since: float
    gain: RunGain = RunGain()


LONGEST_AHEAD = (ENOUGH + DRIFTED + ASKED) * PATIENCE
"""Seconds after which a learner that waits is before all that come later, whatever they would gain."""


def next_turn(waiting: Sequence[Waiting], now: float) -> Waiting:
    """Return whose turn is next at `now` (monotonic seconds); of equals the one that came first.

    Urgency is bounded and waiting is not: who has waited `LONGEST_AHEAD` seconds longer than another goes
    first, so none waits for ever.
    """
    return max(waiting, key=lambda one: (one.gain.urgency + (now - one.since) / PATIENCE, -one.since))
