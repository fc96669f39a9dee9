"""Limits of training: guards as pure rules, the day's budget, failures, and the pace of serving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edged.domain.json_fields import JsonObject
from edged.domain.token_bucket import TokenBucket
from edged.domain.training.message import Message

DAY = 86400
LONGEST_SECONDS = 3600.0
TRY_AGAIN = "then send the command `train`, or give the device a new bundle"


@dataclass(frozen=True)
class GuardRules:
    """Limits; None where there is none.

    `quiet` in minutes of the day, from and to; `max_temperature` in °C; `min_battery` in percent, asked only
    while the device runs on it; `serving_p99` in seconds; `max_minutes` a day; `write_rate` in bytes a
    second.
    """

    quiet: tuple[int, int] | None = None
    max_temperature: float | None = None
    min_battery: float | None = None
    mains_only: bool = False
    serving_p99: float | None = None
    max_minutes: float | None = None
    write_rate: float | None = None


@dataclass(frozen=True)
class Conditions:
    """Conditions on the device; None where it cannot tell, which blocks nothing.

    `minute` of the day in the device's own time; `day` a number that changes with the day; `board` what
    troubles it: heat or supply, in words; `worn` whether training has written its share, see `FlashWear`.
    """

    minute: int
    day: int
    temperature_c: float | None = None
    on_battery: bool | None = None
    battery_percent: float | None = None
    serving_p99: float | None = None
    board: tuple[str, ...] = ()
    worn: bool = False

    @classmethod
    def at(cls, local_seconds: float) -> Conditions:
        """Of the time alone: Unix seconds shifted to the device's own time."""
        return cls(int(local_seconds % DAY // 60), int(local_seconds // DAY))


@dataclass(frozen=True)
class Budget(Message):
    """Runs and seconds of training in one day; its JSON is on the disk."""

    day: int = -1
    runs: int = 0
    seconds: float = 0.0

    def of(self, day: int) -> Budget:
        """The budget used up on that day; what was used on another one does not count."""
        return self if day == self.day else Budget(day)

    def spent(self, day: int, seconds: float) -> Budget:
        """The same after one more run."""
        before = self.of(day)
        return Budget(day, before.runs + 1, before.seconds + seconds)


class FlashWear:
    """Bytes that training may write to flash: so much at once, and `rate` per second in the long run.

    A run is never cut short: the one that empties the bucket is waited for by the next.

    >>> wear = FlashWear(1024.0, burst=4096); wear.worn(4096, 0.0), wear.worn(5120, 0.0)
    (True, True)
    >>> wear.worn(5120, 0.5), wear.worn(5120, 1.5)
    (True, False)
    """

    def __init__(self, rate: float, burst: float = 4 * 1024**2) -> None:
        self._bucket = TokenBucket(rate, burst)
        self._written = 0

    def worn(self, written: int, now: float) -> bool:
        """Return whether the share is used up by `written` bytes until `now` (monotonic seconds)."""
        left = self._bucket.tokens(now) - (written - self._written)
        self._bucket.spend(written - self._written)
        self._written = written
        return left <= 0


def refusals(rules: GuardRules, now: Conditions, used: Budget) -> tuple[str, ...]:
    """Every guard that holds a run back, in words without figures that change by the second.

    >>> refusals(GuardRules(quiet=(22 * 60, 6 * 60)), Conditions(minute=30, day=0), Budget())
    ('quiet hours, until 06:00',)
    """
    used = used.of(now.day)
    found = [
        is_quiet(rules.quiet, now.minute) and f"quiet hours, until {_clock(rules.quiet)}",
        _above(now.temperature_c, rules.max_temperature)
        and f"temperature above {rules.max_temperature:g} °C",
        rules.mains_only and now.on_battery is True and "mains power",
        now.on_battery is not False
        and _above(rules.min_battery, now.battery_percent)
        and f"battery below {rules.min_battery:g} %",
        _above(now.serving_p99, rules.serving_p99)
        and f"predictions slower than {(rules.serving_p99 or 0) * 1e3:g} ms",
        rules.max_minutes is not None
        and used.seconds >= rules.max_minutes * 60
        and f"{rules.max_minutes:g} minutes of training today",
        rules.write_rate is not None
        and now.worn
        and f"flash: training writes {rules.write_rate / 1024:g} KiB a second on average",
        now.board and f"the board: {', '.join(now.board)}",
    ]
    return tuple(reason for reason in found if isinstance(reason, str))


def is_quiet(quiet: tuple[int, int] | None, minute: int) -> bool:
    """Return whether a minute of the day lies in the quiet hours, which may pass midnight."""
    if quiet is None:
        return False
    begin, end = quiet
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


def _clock(quiet: tuple[int, int] | None) -> str:
    end = 0 if quiet is None else quiet[1]
    return f"{end // 60:02d}:{end % 60:02d}"


def _above(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value > limit


STEPS = (0.0, 0.5, 1.0, 3.0, 9.0, float("inf"))  # rest after each training step, in times of its own length


@dataclass
class TrainingPace:
    """Pauses of the trainer, so that predictions stay within their budget of time.

    One step slower each time that the 99th percentile of serving exceeds the budget, up to a halt; one step
    faster when it is below 70 % of it, or when nothing was served.

    >>> pace = TrainingPace(0.010)
    >>> pace.throttle(0.020), pace.throttle(0.020), pace.throttle(0.009), pace.throttle(0.001)
    (0.5, 1.0, 1.0, 0.5)
    """

    budget: float
    level: int = 0

    def throttle(self, p99: float | None) -> float:
        """Return the pause after each step, in times of its length, for a latency `p99` in seconds."""
        if p99 is not None and p99 > self.budget:
            self.level = min(self.level + 1, len(STEPS) - 1)
        elif p99 is None or p99 < 0.7 * self.budget:
            self.level = max(self.level - 1, 0)
        return STEPS[self.level]


@dataclass(frozen=True)
class BackoffRules:
    """Seconds to wait after a first failure, and how many failures in a row pause training (0: none do)."""

    retry_after: float = 10.0
    most: int = 3


@dataclass(frozen=True)
class TrainingPause(Message):
    """Why training is paused, `since` when (Unix seconds), and what to do."""

    failures: int
    reason: str
    remedy: str
    since: float | None


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
        """True if only a command starts the next run."""
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
        """Reset the count: a run has ended well."""
        self.failures, self.reason, self.remedy, self.since = 0, "", "", None

    def pause(self) -> TrainingPause | None:
        """Return why training is paused; None while it is not."""
        if not self.paused:
            return None
        remedy = f"{self.remedy}; {TRY_AGAIN}" if self.remedy else f"mend the cause, {TRY_AGAIN}"
        return TrainingPause(self.failures, self.reason, remedy, self.since)

    def dump(self) -> JsonObject:
        """Return JSON values that `recalled` reads."""
        return {name: value for name, value in vars(self).items() if name != "rules"}

    @classmethod
    def recalled(cls, rules: BackoffRules, kept: Mapping[str, Any] | None) -> FailureBackoff:
        """Restore what an earlier process has kept of `dump`, if anything."""
        if kept is None:
            return cls(rules)
        return cls(rules, int(kept["failures"]), str(kept["reason"]), str(kept["remedy"]), kept["since"])
