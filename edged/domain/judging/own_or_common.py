"""Whether a key's own model answers, or the stream's: by the newest labels that both have answered."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.json_fields import JsonObject

HALF_LIFE = 150.0  # labels after which one counts half
SURE = 1.0  # standard deviations of chance that a lead must exceed before another model answers


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

    def state(self) -> JsonObject:
        """Return the state that `restore` goes on from."""
        return {"own": self.own, "labels": self.labels, "lead": self._lead, "spread": self._spread}

    def restore(self, state: Any) -> None:
        """Go on from what `state` returned; CorruptError when it is something else."""
        try:
            own, labels = bool(state["own"]), int(state["labels"])
            lead, spread = float(state["lead"]), float(state["spread"])
        except (LookupError, TypeError, ValueError) as problem:
            raise CorruptError(f"what is known of two models is damaged: {problem}") from problem
        if not (np.isfinite(lead) and np.isfinite(spread) and spread >= 0):
            raise CorruptError("what is known of two models is damaged")
        self.own, self.labels, self._lead, self._spread = own, labels, lead, spread
