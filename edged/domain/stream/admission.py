"""What a stream is guarded against: floods, wrong clocks, sensors that stand still, values that cannot be.

All times are seconds; `now` is Unix time, `monotonic` never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edged.domain.arrays import quantiles
from edged.domain.token_bucket import TokenBucket

MOST_KEYS = 10_000
OUTCOMES_KEPT = 100  # messages or labels of which most may be refused
MIN_OUTCOMES = 3
KNOWN = 100  # readings from which the usual range of a feature follows
BEYOND = 1000.0  # times its range, and as many times its largest value, a value may lie outside of it
LASTING = 20  # samples of a key in a row with such values: its sensor measures something else by now
# Of features that stand still.
MOVES = 10  # a feature must have moved so often before: a constant is no broken sensor
PATIENCE = 10  # times its longest rest so far: a door is not stuck because it stays shut overnight
MOST_WATCHED = 4096  # keys whose features are watched for standing still
MOST_BYTES = 8 * 1024**2
_BYTES = 4 + 4 + 4 + 4 + 1  # of one feature of one key
_FIRST_KEYS = 64
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


@dataclass(frozen=True)
class StuckSensor:
    """Features (their positions) of one key that have stopped, or have begun to move again."""

    key: str
    stuck: bool
    features: tuple[int, ...]


class FlatlineDetector:
    """Watches every feature of every key, whole batches at a time.

    A feature is stuck when it has not changed for `after` readings of its key, and for ten times as long as
    it ever rested before; it must have moved ten times. Memory is bounded: of very many keys only the
    first are watched. `width` is the number of features `d`.

    >>> watch = FlatlineDetector(width=1, after=3)
    >>> x = np.arange(12, dtype=np.float32).reshape(-1, 1)
    >>> watch.update(["k"] * 12, x)
    []
    >>> watch.update(["k"] * 12, np.full((12, 1), 11, np.float32))
    [StuckSensor(key='k', stuck=True, features=(0,))]
    """

    def __init__(self, width: int, after: int) -> None:
        self._after = after
        self._most = max(1, min(MOST_WATCHED, MOST_BYTES // (_BYTES * width)))
        self._slots: dict[str, int] = {}
        size = (min(_FIRST_KEYS, self._most), width)
        self._last = np.full(size, np.nan, np.float32)
        self._still = np.zeros(size, np.int32)  # readings since the last change
        self._longest = np.zeros(size, np.int32)  # of the rests that ended
        self._moves = np.zeros(size, np.int32)
        self._stuck = np.zeros(size, bool)

    @property
    def stuck(self) -> int:
        """Features that are stuck now, over all keys."""
        return int(self._stuck.sum())

    def update(self, keys: Sequence[str], x: NDArray[np.float32]) -> list[StuckSensor]:
        """Follow readings `x` `(n, d)` in order of arrival; what has changed about being stuck."""
        slots = np.array([self._slot(key) for key in keys], np.int64)
        order = np.argsort(slots, kind="stable")
        order = order[np.searchsorted(slots[order], 0) :]  # without keys that are not watched
        if len(order) == 0:
            return []
        slots, x = slots[order], x[order]
        heads = np.flatnonzero(np.diff(slots, prepend=-1))
        here = slots[heads]
        before = np.empty_like(x)
        before[1:] = x[:-1]
        before[heads] = self._last[here]
        self._last[here] = x[np.append(heads[1:], len(x)) - 1]
        return self._follow(here, heads, x != before, np.isnan(before))

    def _follow(
        self,
        here: NDArray[np.int64],
        heads: NDArray[np.int64],
        moved: NDArray[np.bool_],
        first: NDArray[np.bool_],
    ) -> list[StuckSensor]:
        """Count rests and moves of the groups that begin at `heads`; `moved` and `first` are `(n, d)`."""
        n = len(moved)
        place = np.arange(n)[:, None]
        changes = np.where(moved, place, -1)
        # The last change before each row, within its group; rests that began earlier reach back beyond it.
        starts = np.repeat(heads, np.diff(np.append(heads, n)))[:, None]
        carried = np.repeat(self._still[here], np.diff(np.append(heads, n)), axis=0)
        newest = np.maximum.accumulate(changes, axis=0)
        earlier = np.vstack([np.full((1, moved.shape[1]), -1), newest[:-1]])
        rest = np.where(earlier >= starts, place - earlier - 1, carried + place - starts)
        ended = np.where(moved & ~first, rest, 0)
        self._longest[here] = np.maximum(self._longest[here], np.maximum.reduceat(ended, heads, axis=0))
        self._moves[here] += np.add.reduceat((moved & ~first).astype(np.int32), heads, axis=0)
        last = np.append(heads[1:], n) - 1
        since = np.where(newest[last] >= heads[:, None], last[:, None] - newest[last], -1)
        total = self._still[here] + (last - heads + 1)[:, None]
        self._still[here] = np.where(since >= 0, since, total)
        return self._changes(here)

    def _changes(self, here: NDArray[np.int64]) -> list[StuckSensor]:
        still = self._still[here]
        patience = np.maximum(self._after, PATIENCE * self._longest[here].astype(np.int64))
        stuck = (still >= patience) & (self._moves[here] >= MOVES)
        was = self._stuck[here]
        freed = was & (still < self._after)
        now = (was | stuck) & ~freed
        self._stuck[here] = now
        rows = np.flatnonzero((now != was).any(axis=1))
        if len(rows) == 0:
            return []
        names = {slot: key for key, slot in self._slots.items()}
        return [
            StuckSensor(names[int(here[row])], found, tuple(np.flatnonzero(change).tolist()))
            for row in rows
            for found, change in ((True, now[row] & ~was[row]), (False, freed[row]))
            if change.any()
        ]

    def _slot(self, key: str) -> int:
        """Row of a key; -1 when there are too many."""
        slot = self._slots.get(key)
        if slot is not None:
            return slot
        slot = len(self._slots)
        if slot >= self._most:
            return -1
        self._slots[key] = slot
        if slot >= len(self._last):
            self._grow()
        return slot

    def _grow(self) -> None:
        more = min(2 * len(self._last), self._most) - len(self._last)
        width = self._last.shape[1]
        self._last = np.vstack([self._last, np.full((more, width), np.nan, np.float32)])
        self._still, self._longest, self._moves = (
            np.vstack([old, np.zeros((more, width), np.int32)])
            for old in (self._still, self._longest, self._moves)
        )
        self._stuck = np.vstack([self._stuck, np.zeros((more, width), bool)])


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


class RefusalMonitor:
    """Follows the newest `OUTCOMES_KEPT` of the things that are called `what`, such as messages.

    One thread records; `problem` may be read from any.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._recent: deque[bool] = deque(maxlen=OUTCOMES_KEPT)
        self._refused = 0
        self._newest = ""

    def record(self, refused: str | None) -> bool:
        """Record one more, with the reason where it was refused; whether `problem` begins or ends with it."""
        if refused is None and not self._refused:
            self._recent.append(False)  # asked for every message, and nearly always so
            return False
        before = self.problem is None
        if len(self._recent) == OUTCOMES_KEPT:
            self._refused -= self._recent[0]
        self._recent.append(refused is not None)
        if refused is not None:
            self._refused += 1
            self._newest = refused
        return before != (self.problem is None)

    @property
    def problem(self) -> str | None:
        """The problem while more than half of at least `MIN_OUTCOMES` are refused; None otherwise.

        >>> labels = RefusalMonitor("labels")
        >>> [labels.record("label 'new' is unknown") for _ in range(3)], labels.problem
        ([False, False, True], "most labels are refused, the newest: label 'new' is unknown")
        """
        if len(self._recent) < MIN_OUTCOMES or 2 * self._refused <= len(self._recent):
            return None
        return f"most {self._what} are refused, the newest: {self._newest}"
