"""How long a group commit waits for company: flash writes whole pages, however little is in them.

A commit of one sample writes as many pages as one of fifty. So samples wait for each other, acknowledged
by nobody meanwhile, as long as more are to be expected soon: a broker that has sent all it may, or a
sensor that sends everything at once and then rests, is not waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

QUIET = 0.02  # seconds without a message after which none is expected, however fast they came
GAPS = 8  # as many times the gap between messages: random arrivals exceed it once in 3,000 gaps


@dataclass
class Company:
    """When the messages that have gathered become durable.

    Parameters
    ----------
    delay
        Seconds that the first of them waits at most; 0 for none at all.

    Examples
    --------
    A hundred messages a second:

    >>> company = Company(1.0)
    >>> for i in range(20): company.came(1, i / 100)
    >>> round(company.due, 2)
    0.27

    One that comes after a long rest waits for no others:

    >>> company.committed(); company.came(1, 60.0); round(company.due, 2)
    60.02
    """

    delay: float
    first: float | None = None
    last: float = float("-inf")
    count: int = 0
    gap: float = float("inf")

    def came(self, messages: int, now: float) -> None:
        """So many messages came, at a moment of the monotonic clock in seconds."""
        if self.first is None:
            self.first, self.count = now, 0
            self.gap = now - self.last
        self.count += messages
        self.last = now
        if self.count > messages:
            self.gap = (now - self.first) / (self.count - 1)

    @property
    def due(self) -> float:
        """The moment at which they should be committed; infinite while there are none."""
        if self.first is None:
            return float("inf")
        if self.delay == 0:
            return self.first
        quiet = QUIET if self.gap > self.delay else max(QUIET, GAPS * self.gap)
        return min(self.first + self.delay, self.last + quiet)

    def committed(self) -> None:
        """They are durable."""
        self.first = None
