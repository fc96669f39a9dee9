"""Limits on how much passes: on average, and at once."""

from __future__ import annotations


class TokenBucket:
    """Lets through `rate` per second on average, and up to `burst` at once (Turner 1986).

    Times are monotonic seconds.

    >>> bucket = TokenBucket(rate=1.0, burst=2)
    >>> [bucket.try_acquire(0.0), bucket.try_acquire(0.0), bucket.try_acquire(0.0), bucket.try_acquire(1.0)]
    [True, True, False, True]
    >>> bucket.allowed(1.5), bucket.wait(1.5)
    (0, 0.5)
    """

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now: float = 0.0) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def tokens(self, now: float) -> float:
        """Return the tokens that are left; below 0 after more were spent."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._at) * self._rate)
        self._at = now
        return self._tokens

    def allowed(self, now: float) -> int:
        """Return how many can pass now."""
        return max(0, int(self.tokens(now)))

    def spend(self, count: float) -> None:
        """Record that `count` have passed; more than are left make a debt."""
        self._tokens -= count

    def try_acquire(self, now: float) -> bool:
        """Spend a token; return False if none is left."""
        passes = self.tokens(now) >= 1.0
        self.spend(passes)
        return passes

    def wait(self, now: float) -> float:
        """Return the seconds until the next one can pass."""
        return max(0.0, (1.0 - self.tokens(now)) / self._rate)
