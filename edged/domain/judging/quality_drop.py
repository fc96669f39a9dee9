"""A sudden fall of live quality: sooner than a drift detector, and less sure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass
class QualityDrop:
    """Whether the newest `recent` errors are larger than the `before` ones before them, far beyond chance.

    Welch's statistic of the two means. It is asked once for each `recent` / 2 errors, and after a fall not
    before half of `before` errors have passed, so that one fall is told once. `rise` is by what share the
    newer errors were larger at the last look.

    >>> fall = QualityDrop(); fall.add(np.zeros(500)), fall.add(np.ones(30))
    (False, True)
    """

    recent: int = 60
    before: int = 500
    z: float = 5.0
    rise: float = 0.0
    _errors: deque[float] = field(default_factory=deque, repr=False)
    _since: int = 0

    def add(self, errors: NDArray[np.float64]) -> bool:
        """Take in errors `(n,)`, oldest first; True where quality has fallen."""
        fallen = False
        for start in range(0, len(errors), self.recent // 2):
            part = errors[start : start + self.recent // 2]
            self._errors.extend(part[np.isfinite(part)].tolist())
            while len(self._errors) > self.recent + self.before:
                self._errors.popleft()
            self._since += len(part)
            if self._since >= self.recent // 2 and self._fallen():
                self._errors.clear()
                fallen = True
            self._since %= self.recent // 2
        return fallen

    def _fallen(self) -> bool:
        if len(self._errors) < self.recent + self.before // 2:
            return False
        values = np.array(self._errors)
        old, new = values[: -self.recent], values[-self.recent :]
        before, now = float(old.mean()), float(new.mean())
        self.rise = now / before - 1.0 if before > 0 else (inf if now > 0 else 0.0)
        # One error more on either side: a stream without any would make every error a certainty.
        spread = (float(old.var()) + 1 / len(old)) / len(old) + (float(new.var()) + 1 / len(new)) / len(new)
        return float(new.mean() - old.mean()) > self.z * sqrt(spread)
