"""What a stream is guarded against: floods, wrong clocks, sensors that stand still, values that cannot be.

All times are seconds; `now` is Unix time, `monotonic` never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edged.domain.stream.quantiles import quantiles
from edged.domain.stream.stuck_sensors import FlatlineDetector, StuckSensor
from edged.domain.token_bucket import TokenBucket

MOST_KEYS = 10_000
KNOWN = 100  # readings from which the usual range of a feature follows
BEYOND = 1000.0  # times its range, and as many times its largest value, a value may lie outside of it
LASTING = 20  # samples of a key in a row with such values: its sensor measures something else by now
PLAUSIBLE = 1_600_000_000.0  # a device's clock before September 2020 has not been set


@dataclass(frozen=True)
class AdmissionRules:
    """Limits; None for none.

    `rate` messages a second over all, beyond which they are acknowledged later; `key_rate` readings a
    second of one key, `key_burst` at once, beyond which they are dropped; `skew` how far an event
    time may lie ahead of the arrival; `stuck_after` readings without a change.
    """

    rate: float | None = None
    key_rate: float | None = None
    key_burst: int | None = None
    skew: float | None = None
    stuck_after: int | None = None


class PlausibleRange:
    """Finds values that lie so far outside of all before them that no sensor has measured them.

    The range of a feature is that of the middle nine tenths of the first `KNOWN` readings, and grows with
    every value that is plausible. A feature that was constant is not judged. What lasts for more than
    `LASTING` samples of a key is believed: the stream has moved.

    >>> usual = PlausibleRange()
    >>> x = np.sin(np.arange(102, dtype=np.float32)).reshape(-1, 1, 1)
    >>> x[101] = 1e6
    >>> bool(usual.outside(["k"] * 100, x[:100]).any()), usual.outside(["k"] * 2, x[100:]).tolist()
    (False, [[False], [True]])
    """

    def __init__(self) -> None:
        self._first: list[NDArray[np.float32]] = []
        self._range: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self._least = self._most = np.empty(0)
        self._lasting: dict[str, int] = {}

    def outside(self, keys: Sequence[str], x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which features of samples `x` `(n, steps, c)`, one key each, have values that cannot be; `(n, c)`.

        Samples come in order of arrival.
        """
        if self._range is None:
            self._begin(x.reshape(-1, x.shape[2]))
            return np.zeros((len(x), x.shape[2]), bool)
        apart = (x < self._least) | (x > self._most)
        outside = np.asarray(apart.any(axis=1))
        if self._lasting or outside.any():
            for row, key in enumerate(keys):
                if self._lasts(key, newest=bool(apart[row, -1].any())):
                    outside[row] = False
        self._widen(x[~outside.any(axis=1)].reshape(-1, x.shape[2]))
        return outside

    def _begin(self, readings: NDArray[np.float32]) -> None:
        self._first.append(readings)
        if sum(map(len, self._first)) >= KNOWN:
            low, high = quantiles(np.concatenate(self._first), [0.05, 0.95])
            self._first.clear()
            self._set(low, high)

    def _lasts(self, key: str, *, newest: bool) -> bool:
        """Whether so many samples of a key were outside that they are believed."""
        count = self._lasting.pop(key, 0) + 1
        if newest:
            self._lasting[key] = count  # the newest are at the end
        if len(self._lasting) > MOST_KEYS:
            del self._lasting[next(iter(self._lasting))]
        return newest and count > LASTING

    def _widen(self, readings: NDArray[np.float32]) -> None:
        if len(readings) and self._range is not None:
            low, high = readings.min(axis=0), readings.max(axis=0)
            if (low < self._range[0]).any() or (high > self._range[1]).any():
                self._set(np.minimum(low, self._range[0]), np.maximum(high, self._range[1]))

    def _set(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> None:
        self._range = low, high
        far = BEYOND * np.maximum(high - low, np.maximum(np.abs(low), np.abs(high)))
        far[high <= low] = np.inf
        self._least, self._most = low - far, high + far


class AdmissionControl:
    """The guards of one stream, with what they counted."""

    def __init__(self, rules: AdmissionRules, width: int) -> None:
        self._rules = rules
        self._buckets: dict[str, TokenBucket] = {}
        self._whole: TokenBucket | None = None
        self._watch = FlatlineDetector(width, rules.stuck_after) if rules.stuck_after else None
        self._range = PlausibleRange()
        self.implausible = 0  # samples with values that cannot be
        self.flooded = 0  # readings that were dropped because their key sent too many
        self.skewed = 0  # event times that were replaced by the time of arrival

    @property
    def stuck(self) -> int:
        """Number of features that are stuck now."""
        return 0 if self._watch is None else self._watch.stuck

    # ---- floods ----------------------------------------------------------------------------

    def pause(self, messages: int, monotonic: float) -> float:
        """Seconds to wait before these messages are acknowledged, so that the broker sends no faster."""
        rate = self._rules.rate
        if rate is None:
            return 0.0
        if self._whole is None:
            self._whole = TokenBucket(rate, rate, monotonic)
        self._whole.tokens(monotonic)
        self._whole.spend(messages)
        return max(0.0, -self._whole.tokens(monotonic) / rate)

    def admit(self, key: str, monotonic: float) -> bool:
        """Whether a reading of this key may be stored; else it is counted."""
        rate = self._rules.key_rate
        if rate is None:
            return True
        burst = float(self._rules.key_burst or max(1.0, 10.0 * rate))
        bucket = self._buckets.pop(key, None) or TokenBucket(rate, burst, monotonic)
        self._buckets[key] = bucket  # the newest are at the end
        if len(self._buckets) > MOST_KEYS:
            del self._buckets[next(iter(self._buckets))]
        if bucket.try_acquire(monotonic):
            return True
        self.flooded += 1
        return False

    # ---- clocks ----------------------------------------------------------------------------

    def event_times(self, times: Sequence[float | None], now: float) -> NDArray[np.float64]:
        """Event times `(n,)`: those of the messages, the arrival where there is none or it cannot be.

        A device whose own clock has not been set yet judges nobody's.
        """
        ts = np.array([now if time is None else time for time in times], np.float64)
        if now < PLAUSIBLE:
            return ts
        wrong = ts > now + (np.inf if self._rules.skew is None else self._rules.skew)
        if wrong.any():
            self.skewed += int(wrong.sum())
            ts[wrong] = now
        return ts

    def event_time(self, ts: float, now: float) -> float:
        """`event_times` for one message that has a time."""
        skew = self._rules.skew
        if skew is None or ts <= now + skew or now < PLAUSIBLE:
            return ts
        self.skewed += 1
        return now

    # ---- sensors ---------------------------------------------------------------------------

    def watch(self, keys: Sequence[str], x: NDArray[np.float32]) -> list[StuckSensor]:
        """Sensors that have stopped or moved again with these readings `(n, c)`."""
        return [] if self._watch is None else self._watch.update(keys, x)

    def implausible_values(self, keys: Sequence[str], x: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which features of samples `x` `(n, steps, c)` have values that cannot be, `(n, c)`; counted."""
        outside = self._range.outside(keys, x)
        self.implausible += int(outside.any(axis=1).sum())
        return outside
