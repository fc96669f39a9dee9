"""Whether most of what arrives is refused: a stream that has stopped working without a fault of edged."""

from __future__ import annotations

from collections import deque

RECENT = 100
ENOUGH = 3


class RefusalMonitor:
    """Follows the newest `RECENT` of the things that are called `what`, such as messages.

    One thread records; `problem` may be read from any.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._refused = 0
        self._newest = ""

    def record(self, refused: str | None) -> bool:
        """Record one more, with the reason where it was refused; whether `problem` begins or ends with it."""
        if refused is None and not self._refused:
            self._recent.append(False)  # asked for every message, and nearly always so
            return False
        before = self.problem is None
        if len(self._recent) == RECENT:
            self._refused -= self._recent[0]
        self._recent.append(refused is not None)
        if refused is not None:
            self._refused += 1
            self._newest = refused
        return before != (self.problem is None)

    @property
    def problem(self) -> str | None:
        """What is wrong while more than half are refused; None otherwise, and before there are `ENOUGH`.

        >>> labels = RefusalMonitor("labels")
        >>> [labels.record("label 'new' is unknown") for _ in range(3)], labels.problem
        ([False, False, True], "most labels are refused, the newest: label 'new' is unknown")
        """
        if len(self._recent) < ENOUGH or 2 * self._refused <= len(self._recent):
            return None
        return f"most {self._what} are refused, the newest: {self._newest}"
