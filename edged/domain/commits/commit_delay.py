"""When a group of messages is committed: flash writes whole pages, however little is in them.

A commit of one sample writes as many pages as one of fifty. So samples wait for each other, unacknowledged,
as long as more are to be expected soon: a broker that has sent all it may, or a sensor that rests, is not
waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

QUIET = 0.01  # seconds without a message after which none is expected, however fast they came
GAPS = 8  # as many times the gap between messages: random arrivals exceed it once in 3,000 gaps
FEW = 10  # messages of a group, before which the gap in the group before counts as well


@dataclass
class CommitDelay:
    """Commits a group `delay` seconds after its first message, or once a pause shows that no more follow.

    The pause is `GAPS` times the usual gap between messages, and at least `QUIET`. Behind an acknowledgement
    the gap counts from there: the broker may have waited for it.

    A hundred messages a second:

    >>> delay = CommitDelay(1.0)
    >>> for i in range(20): delay.record_arrival(1, i / 100)
    >>> round(delay.due, 2)
    0.27

    One that comes after a long rest waits for no others:

    >>> delay.committed(0.3); delay.record_arrival(1, 60.0); round(delay.due, 2)
    60.01

    Twenty at once, as soon as the last message was acknowledged:

    >>> delay.committed(60.02); delay.record_arrival(20, 60.03); round(delay.due, 2)
    60.04
    """

    delay: float  # seconds that the first message waits at most; 0: no message waits
    first: float | None = None  # moments of the first and last message of the group, and their number
    last: float = float("-inf")
    count: int = 0
    gap: float = float("inf")
    usual: float = 0.0  # gap within the group before; 0 if it was a single message
    acknowledged: float = float("-inf")

    def record_arrival(self, messages: int, first: float, last: float | None = None) -> None:
        """Record one or more messages, received from `first` to `last`, in seconds of the monotonic clock."""
        last = first if last is None else last
        if self.first is None:
            before = self.last if first <= self.acknowledged else max(self.last, self.acknowledged)
            self.first, self.count, self.gap = first, 0, max(0.0, first - before)
        self.count += messages
        self.last = last
        if self.count > 1:
            self.gap = max(0.0, last - self.first) / (self.count - 1)

    @property
    def due(self) -> float:
        """Monotonic time at which to commit the group; infinite if it is empty."""
        if self.first is None:
            return float("inf")
        if self.delay == 0:
            return self.last
        gap = max(self.gap, self.usual) if self.count < FEW else self.gap
        quiet = QUIET if gap > self.delay else max(QUIET, GAPS * gap)
        return min(self.first + self.delay, self.last + quiet)

    def committed(self, acknowledged: float) -> None:
        """Begin a new group: the present one was acknowledged at this moment."""
        if self.first is None:
            return
        self.usual = self.gap if self.count > 1 else 0.0
        self.acknowledged = acknowledged
        self.first = None


@dataclass(eq=False, slots=True)
class FlushRequest:
    """A thread that waits for a flush; once `done` is set, `flushed` tells whether it succeeded."""

    done: threading.Event = field(default_factory=threading.Event)
    flushed: bool = False


class FlushRequests:
    """Who wants a loop to finish what it has at hand; any thread may ask but the one that loops.

    Nobody waits for a loop that is over, nor for ever for one that is stuck.
    """

    def __init__(self) -> None:
        self._waiting: deque[FlushRequest] = deque()
        self._over = False

    def wait(self, wake: Callable[[], object], timeout: float) -> bool:
        """Request a turn by `wake`; return whether it committed everything within `timeout` seconds."""
        wait = FlushRequest()
        self._waiting.append(wait)
        if self._over:
            return True
        wake()
        return wait.done.wait(timeout) and wait.flushed

    def start_turn(self) -> list[FlushRequest]:
        """Return the requests that this turn serves; call this once the loop can be woken again."""
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def finish_turn(self, waits: list[FlushRequest], *, flushed: bool) -> None:
        """Wake the waiting threads with the result of the commit."""
        for wait in waits:
            wait.flushed = flushed
            wait.done.set()

    def close(self) -> None:
        """Release all waiting threads: the loop has stopped and left nothing to commit."""
        self._over = True
        self.finish_turn(self.start_turn(), flushed=True)
