"""When to connect again, and with which version of MQTT: pure rules."""

from __future__ import annotations

import random
from typing import Literal

Protocol = Literal["5", "3.1.1"]

FIRST = 0.2
SETTLED = 10.0
TWIN_FIRST, TWIN_LONGEST = 15.0, 300.0
SILENT_CLOSES = 2
PATIENCE = 2.0
LONGEST_PATIENCE = 30.0


class Backoff:
    """Exponential backoff with full jitter (Brooker, AWS Architecture Blog, 2015).

    A connection has to last `SETTLED` seconds to be forgiven: a broker that takes us and throws us
    out at once must not make us spin. Where another client uses our name, each of the two throws the
    other out: then the pauses are long, between half of 15, 30, 60 ... 300 seconds and the whole.
    """

    def __init__(self, longest: float, rng: random.Random | None = None) -> None:
        self._longest = longest
        self._rng = rng or random.Random()
        self._attempt = 0
        self._twins = 0
        self._taken_over = False

    def taken_over(self) -> None:
        """Another client has come with our name; call it before `ended`."""
        self._taken_over = True
        self._twins += 1

    def record_end(self, lasted: float) -> None:
        """Record a connection that ended after `lasted` seconds; 0 if it was never established."""
        if lasted >= SETTLED:
            self._attempt = 0
        if lasted >= TWIN_LONGEST:
            self._twins = int(self._taken_over)

    def delay(self) -> float:
        """Seconds to wait before the next attempt."""
        if self._taken_over:
            self._taken_over = False
            bound = min(TWIN_LONGEST, TWIN_FIRST * 2.0 ** min(self._twins - 1, 32))
            return self._rng.uniform(bound / 2, bound)
        bound = min(self._longest, FIRST * 2.0 ** min(self._attempt, 32))
        self._attempt += 1
        return self._rng.uniform(0.0, bound)


class ProtocolChoice:
    """Speaks the configured version; from 5 it falls back to 3.1.1 where the broker refuses 5.

    Some brokers refuse with a reason, others close or never answer: when that has happened twice in a
    row the other version is tried, until one is accepted. `patience` is how long to wait for an
    answer, in seconds; it grows, so that a slow link gets through in the end.

    >>> choice = ProtocolChoice("5"); choice.refused(); choice.protocol
    True
    '3.1.1'
    """

    def __init__(self, preferred: Protocol) -> None:
        self.protocol: Protocol = preferred
        self.patience = PATIENCE
        self._fixed = preferred == "3.1.1"
        self._proven = False
        self._silent = 0

    def accepted(self) -> bool:
        """The broker took us; True when that is the first time with this version."""
        news = not self._proven
        self._proven = True
        self._silent = 0
        self.patience = PATIENCE
        return news

    def refused(self) -> bool:
        """The broker does not speak this version; True when another one will be tried."""
        if self._fixed:
            return False
        self.protocol = "3.1.1" if self.protocol == "5" else "5"
        self._proven = False
        self._silent = 0
        return True

    def closed_silently(self) -> bool:
        """The broker gave no answer; True when the other version will be tried."""
        self.patience = min(LONGEST_PATIENCE, 2.0 * self.patience)
        if self._proven:
            return False
        self._silent += 1
        return self._silent >= SILENT_CLOSES and self.refused()
