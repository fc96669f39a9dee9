"""Training runs that failed one after the other: how long to wait, and when to stop trying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_SECONDS = 3600.0
TRY_AGAIN = "then send the command `train`, or give the device a new bundle"


@dataclass(frozen=True)
class BackoffRules:
    """Seconds to wait after a first failure, and how many failures in a row pause training (0: none do)."""

    retry_after: float = 10.0
    most: int = 3


@dataclass
class FailureBackoff:
    """Counts failures in a row; a run that ends well forgets them.

    >>> backoff = FailureBackoff(BackoffRules(retry_after=10.0, most=3))
    >>> for second in range(3):
    ...     backoff.failed("killed by SIGSEGV", "try the other engine", float(second))
    >>> backoff.paused, backoff.wait
    (True, 40.0)
    >>> backoff.succeeded()
    >>> backoff.paused, backoff.wait
    (False, 0.0)
    """

    rules: BackoffRules
    failures: int = 0
    reason: str = ""
    remedy: str = ""
    since: float | None = None

    @property
    def paused(self) -> bool:
        """Whether only a command starts the next run."""
        return 0 < self.rules.most <= self.failures

    @property
    def wait(self) -> float:
        """Seconds until the next automatic run: doubled by each failure, at most an hour."""
        if self.failures == 0:
            return 0.0
        return min(LONGEST_SECONDS, self.rules.retry_after * 2.0 ** min(self.failures - 1, 30))

    def failed(self, reason: str, remedy: str, ts: float) -> None:
        """Record one more failure, at `ts` Unix seconds."""
        self.failures += 1
        self.reason, self.remedy, self.since = reason, remedy, ts

    def succeeded(self) -> None:
        """A run ended well."""
        self.failures, self.reason, self.remedy, self.since = 0, "", "", None

    def pause(self) -> dict[str, Any] | None:
        """Why training is paused, since when and what to do; None while it is not."""
        if not self.paused:
            return None
        remedy = f"{self.remedy}; {TRY_AGAIN}" if self.remedy else f"mend the cause, {TRY_AGAIN}"
        return {"failures": self.failures, "reason": self.reason, "remedy": remedy, "since": self.since}

    def dump(self) -> dict[str, Any]:
        """Return JSON values that `recalled` reads."""
        return {
            "failures": self.failures,
            "reason": self.reason,
            "remedy": self.remedy,
            "since": self.since,
        }

    @classmethod
    def recalled(cls, rules: BackoffRules, kept: Mapping[str, Any] | None) -> FailureBackoff:
        """What an earlier process has kept of `dump`, if anything."""
        if kept is None:
            return cls(rules)
        return cls(rules, int(kept["failures"]), str(kept["reason"]), str(kept["remedy"]), kept["since"])
