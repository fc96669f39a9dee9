"""What a stream is guarded against before it is stored: floods, wrong clocks, sensors that stand still.

All times are seconds; `now` is Unix time, `monotonic` never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.stream.stuck_sensors import FlatlineDetector, StuckSensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_KEYS = 10_000
PLAUSIBLE = 1_600_000_000.0  # a device's clock before September 2020 has not been set


@dataclass(frozen=True)
class AdmissionRules:
    """Limits; None for none.

    `rate` messages a second over all, beyond which they are acknowledged later; `key_rate` readings a
    second of one key, `key_burst` at once, beyond which they are dropped; `skew` and `late` how far an
    event time may lie ahead of and behind the arrival; `stuck_after` readings without a change.
    """

    rate: float | None = None
    key_rate: float | None = None
    key_burst: int | None = None
    skew: float | None = None
    late: float | None = None
    stuck_after: int | None = None


class Bucket:
    """A token bucket: `rate` a second, at most `burst` at once (Turner 1986)."""

    __slots__ = ("_at", "_tokens")

    def __init__(self, burst: float, monotonic: float) -> None:
        self._tokens = burst
        self._at = monotonic

    def fill(self, rate: float, burst: float, monotonic: float) -> float:
        """Tokens that are there now."""
        self._tokens = min(burst, self._tokens + (monotonic - self._at) * rate)
        self._at = monotonic
        return self._tokens

    def consume(self, tokens: float) -> None:
        """Spend tokens; spending more than are left makes a debt."""
        self._tokens -= tokens


class AdmissionControl:
    """The guards of one stream, with what they counted."""

    def __init__(self, rules: AdmissionRules, width: int) -> None:
        self._rules = rules
        self._buckets: dict[str, Bucket] = {}
        self._whole: Bucket | None = None
        self._watch = FlatlineDetector(width, rules.stuck_after) if rules.stuck_after else None
        self.flooded = 0  # readings that were dropped because their key sent too many
        self.skewed = 0  # event times that were replaced by the time of arrival

    @property
    def stuck(self) -> int:
        """Features that are stuck now."""
        return 0 if self._watch is None else self._watch.stuck

    # ---- floods ----------------------------------------------------------------------------

    def pause(self, messages: int, monotonic: float) -> float:
        """Seconds to wait before these messages are acknowledged, so that the broker sends no faster."""
        rate = self._rules.rate
        if rate is None:
            return 0.0
        if self._whole is None:
            self._whole = Bucket(rate, monotonic)
        self._whole.fill(rate, rate, monotonic)
        self._whole.consume(messages)
        return max(0.0, -self._whole.fill(rate, rate, monotonic) / rate)

    def admit(self, key: str, monotonic: float) -> bool:
        """Whether a reading of this key may be stored; else it is counted."""
        rate = self._rules.key_rate
        if rate is None:
            return True
        burst = float(self._rules.key_burst or max(1.0, 10.0 * rate))
        bucket = self._buckets.pop(key, None) or Bucket(burst, monotonic)
        self._buckets[key] = bucket  # the newest are at the end
        if len(self._buckets) > MOST_KEYS:
            del self._buckets[next(iter(self._buckets))]
        if bucket.fill(rate, burst, monotonic) < 1.0:
            self.flooded += 1
            return False
        bucket.consume(1.0)
        return True

    # ---- clocks ----------------------------------------------------------------------------

    def event_times(self, times: Sequence[float | None], now: float) -> NDArray[np.float64]:
        """Event times `(n,)`: those of the messages, the arrival where there is none or it cannot be.

        A device whose own clock has not been set yet judges nobody's.
        """
        ts = np.array([now if time is None else time for time in times], np.float64)
        if now < PLAUSIBLE:
            return ts
        skew, late = self._rules.skew, self._rules.late
        latest = np.inf if skew is None else now + skew
        earliest = -np.inf if late is None else now - late
        wrong = (ts > latest) | (ts < earliest)
        if wrong.any():
            self.skewed += int(wrong.sum())
            ts[wrong] = now
        return ts

    def event_time(self, ts: float, now: float) -> float:
        """`event_times` for one message that has a time."""
        skew, late = self._rules.skew, self._rules.late
        wrong = (skew is not None and ts > now + skew) or (late is not None and ts < now - late)
        if not wrong or now < PLAUSIBLE:
            return ts
        self.skewed += 1
        return now

    # ---- sensors ---------------------------------------------------------------------------

    def watch(self, keys: Sequence[str], x: NDArray[np.float32]) -> list[StuckSensor]:
        """Sensors that have stopped or moved again with these readings `(n, c)`."""
        return [] if self._watch is None else self._watch.update(keys, x)
