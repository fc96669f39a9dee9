"""Whether a key's own model answers, or the stream's: by the newest labels that both have answered."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING

from edged.domain.training.message import Message
from edged.errors import CorruptError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HALF_LIFE = 150.0  # labels after which one counts half
SURE = 1.0  # standard deviations of chance that a lead must exceed before another model answers


@dataclass(frozen=True)
class ContestState(Message):
    """State of `OwnOrCommon`: which model answers, how many labels came, the sum and that of its squares."""

    own: bool
    labels: int
    lead: float
    spread: float


class OwnOrCommon:
    """Lets the better of two models answer, both of which are asked about every sample.

    A label adds the difference of their errors to a sum in which older labels count less. Where the sum is
    further from 0 than `SURE` times what chance makes of it, the model that erred less answers from then on.
    `own` says whether that is the key's own.
    """

    def __init__(self) -> None:
        self.own = False
        self.labels = 0
        self._lead = self._spread = 0.0

    def begin(self) -> None:
        """The own model has passed the gate: it answers, and must hold its own."""
        self.own, self._lead, self._spread = True, 0.0, 0.0

    def give_up(self) -> None:
        """The stream's model answers until the own one has shown that it is better."""
        self.own, self._lead, self._spread = False, 0.0, 0.0

    def add(self, own: NDArray[np.float64], common: NDArray[np.float64]) -> bool:
        """Take in errors `(n,)` of both on the same labels, oldest first; whether another answers now."""
        kept = 0.5 ** (1.0 / HALF_LIFE)
        for gain in (common - own).tolist():
            self._lead = kept * self._lead + gain
            self._spread = kept * self._spread + gain * gain
            self.labels += 1
        before, far = self.own, SURE * sqrt(self._spread)
        if abs(self._lead) > far > 0.0:
            self.own = self._lead > 0.0
        return self.own is not before

    def state(self) -> ContestState:
        """Return the state that `restore` goes on from."""
        return ContestState(self.own, self.labels, self._lead, self._spread)

    def restore(self, state: ContestState) -> None:
        """Go on from what `state` returned; CorruptError when its sums can be none."""
        if not (isfinite(state.lead) and isfinite(state.spread) and state.spread >= 0):
            raise CorruptError("what is known of two models is damaged")
        self.own, self.labels, self._lead, self._spread = state.own, state.labels, state.lead, state.spread
