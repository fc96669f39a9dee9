"""How long a group commit waits for company: flash writes whole pages, however little is in them.

A commit of one sample writes as many pages as one of fifty. So samples wait for each other, acknowledged
by nobody meanwhile, as long as more are to be expected soon: a broker that has sent all it may, or a
sensor that sends everything at once and then rests, is not waited for.

How many messages a broker sends before it waits for acknowledgements, nobody tells. Where several times in a
row the next message came only after the acknowledgement, and sooner than a random one would have, that many
are its window.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

QUIET = 0.25  # seconds without a message after which none is expected, however fast they came
GAPS = 8  # as many times the gap between messages: random arrivals exceed it once in 3,000 gaps
BURST, LEAST = 0.02, 10  # seconds in which so many messages come at once, as all that a broker may send
CHAIN = 50  # bursts of a size that are not waited behind, before that is tried again
PROMPT = 4  # as many times sooner than it was waited for a message comes that an acknowledgement brings on
PROOFS = 3  # groups of one size in a row that acknowledgements alone brought on: that is the broker's window


@dataclass
class CommitDelay:
    """When the messages that have gathered become durable.

    A burst behind which nothing came may be all that the broker sends before an acknowledgement: the next
    ones of that size are committed at once. Nor does a group wait that fills the `window`: how many messages
    the broker sends unacknowledged, as far as is known.

    A hundred messages a second:

    >>> delay = CommitDelay(1.0)
    >>> for i in range(20): delay.record_arrival(1, i / 100)
    >>> round(delay.due, 2)
    0.44

    One that comes after a long rest waits for no others:

    >>> delay.committed(); delay.record_arrival(1, 60.0); round(delay.due, 2)
    60.25

    Twenty at once, and again as soon as they were acknowledged:

    >>> delay.committed(); delay.record_arrival(20, 70.0); round(delay.due, 2)
    70.25
    >>> delay.committed(); delay.record_arrival(20, 70.26); round(delay.due, 2)
    70.26

    One at a time, each 10 ms after the acknowledgement of the one before:

    >>> delay, now = CommitDelay(1.0), 0.0
    >>> for _ in range(4):
    ...     delay.record_arrival(1, now); waited = delay.due - now
    ...     delay.committed(delay.due); now = delay.acknowledged + 0.01
    >>> delay.window, waited
    (1, 0.0)
    """

    delay: float  # seconds that the first of them waits at most; 0 for none at all
    first: float | None = None
    last: float = float("-inf")
    count: int = 0
    gap: float = float("inf")
    burst: float = float("inf")
    chain: int = 0
    window: float = float("inf")
    size: int = 0  # of the group before, and when it was acknowledged, how long after its last message
    acknowledged: float = math.nan
    silence: float = 0.0
    after: float = 0.0  # the acknowledgement, when the next message came
    proofs: int = 0
    commits: int = 0

    def record_arrival(self, messages: int, now: float, received: float | None = None) -> None:
        """Record `messages` at `now`, in seconds of the monotonic clock; the first was `received` before."""
        if self.first is None:
            self.first, self.count = now, 0
            self.gap = now - self.last
            self._learn_window(now if received is None else received)
        self.count += messages
        self.last = now
        if self.count > messages:
            self.gap = (now - self.first) / (self.count - 1)

    @property
    def due(self) -> float:
        """Monotonic time at which to commit the group; infinite if it is empty."""
        if self.first is None:
            return float("inf")
        if self.delay == 0 or self._is_whole_burst(self.first):
            return self.last
        quiet = QUIET if self.gap > self.delay else max(QUIET, GAPS * self.gap)
        if self.proofs and self.count >= self.size:
            # The gap was of our own making; another pause than before tells a sensor that keeps time.
            quiet = min(quiet, max(QUIET, PROMPT * self.after) * (1 + self.proofs / 2))
        if self.count >= self.window:
            # Now and then a moment is left in which a message would show that the window is larger.
            quiet = 0.0 if self.commits % CHAIN else min(quiet, 2 * self.gap)
        return min(self.first + self.delay, self.last + quiet)

    def _is_whole_burst(self, first: float) -> bool:
        return self.count >= self.burst and self.last - first <= BURST

    def _learn_window(self, received: float) -> None:
        """Learn from the first message of a group whether the acknowledgement before it brought it on."""
        self.after = received - self.acknowledged
        if self.after <= 0:
            self.proofs = 0
            if self.size >= self.window:
                self.window = float("inf")
        elif self.silence >= min(QUIET, self.delay):
            self.proofs = self.proofs + 1 if PROMPT * self.after <= self.silence else 0
        if self.proofs >= PROOFS:
            self.window = self.size

    def committed(self, acknowledged: float = math.nan) -> None:
        """Learn from a group that is durable now: adapt the delay to its burst.

        `acknowledged` is the moment before its acknowledgement; without it no window is learned.
        """
        if self.first is None:
            return
        if self.count > self.window:
            self.window = float("inf")
        if self.count != self.size:
            self.proofs = 0
        self.size, self.acknowledged, self.silence = self.count, acknowledged, acknowledged - self.last
        if self.silence < PROMPT * (self.last - self.first):
            self.silence = 0.0  # no longer than between any two of them
        self.commits += 1
        if self._is_whole_burst(self.first) and self.chain > 0:
            self.chain -= 1
        elif self.last - self.first <= BURST and self.count >= LEAST and self.burst == float("inf"):
            self.burst, self.chain = self.count, CHAIN
        else:
            self.burst = float("inf")
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
