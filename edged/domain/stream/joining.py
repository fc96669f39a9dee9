"""Samples of the newest values of a key, as of one moment of event time.

A value counts from its own event time on, whenever it arrives. A sample of the moment t takes of each
feature the newest value that is not younger than t: nothing from after it, and what arrives late changes no
sample that was made before. Samples by the clock are of stretches of event time, each up to but without its
end; the clock ends one when a value of the next arrives, or when as much time has passed since the last.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from edged.domain.commits.commit_group import JoinChanges
from edged.domain.stream.sample import LabelValue, Observation, Reading

MOST_KEYS = 10_000
AWAY_AFTER = 20  # samples in a row without a value, after which its sensor is reported
SILENT_PERIODS = 10  # by the clock: a key that is silent for longer, and than any max_age, makes no samples
MOST_PERIODS = 1000  # the same, where values may be old: after a long break samples are not made up
DEPTH = 3  # newest values that are kept of each feature: samples that are late find theirs

# Numbers of one feature of one key: DEPTH times of values, newest first; the values; the time and value of
# the last that was a number; mean and count of all of them; samples in a row that lacked it.
_LAST, _MEAN, _COUNT, _AWAY, _STRIDE = 2 * DEPTH, 2 * DEPTH + 2, 2 * DEPTH + 3, 2 * DEPTH + 4, 2 * DEPTH + 5
_NEVER = -math.inf
_FRESH = [_NEVER] * DEPTH + [math.nan] * DEPTH + [_NEVER, math.nan, 0.0, 0.0, 0.0]
# Behind the features: newest event time, time of the last sample, end of the last stretch, whether something
# came since; then the values of the last sample, for `change`.
_NEWEST, _SAMPLED, _ENDED, _NEWS, _HEAD = 0, 1, 2, 3, 4


Time = Literal["hour_of_day", "day_of_week"]
Change = Literal["difference", "rate", "log"]


@dataclass(frozen=True)
class FeatureRule:
    """One feature: of messages, or with `time` of the sample's local time (two columns, sine and cosine).

    A value older than `max_age` seconds is missing. `change`: the difference to the key's previous sample,
    the same for each second, or the natural logarithm.
    """

    name: str
    time: Time | None = None
    max_age: float | None = None
    change: Change | None = None


@dataclass(frozen=True)
class JoinRules:
    """How samples are made of the newest values of a key.

    A sample is made with every message that brings a value; with `trigger` only where it brings this
    feature (a position among those of messages); with `period` by the clock, each so many seconds.
    `fill` stands for missing values; `flags` adds a column for each feature of messages that says which.
    """

    features: tuple[FeatureRule, ...]
    trigger: int | None = None
    period: float | None = None
    fill: Literal["last", "mean"] = "last"
    flags: bool = False

    @property
    def measured(self) -> tuple[FeatureRule, ...]:
        """The features that messages bring."""
        return tuple(rule for rule in self.features if rule.time is None)


@dataclass(frozen=True)
class SensorAbsence:
    """Features (their positions among those that messages bring) that stay away, or are back."""

    key: str
    away: bool
    features: tuple[int, ...]


class Joining:
    """Makes samples of observations, all keys of a stream; of very many those that were heard last.

    >>> from edged.domain.stream.sample import Observation
    >>> joining = Joining(JoinRules((FeatureRule("a"), FeatureRule("b")), trigger=1))
    >>> joining.accept(Observation("k", [(0, 5.0)]), 1.0), joining.accept(Observation("k", [(1, 6.0)]), 2.0)
    ([], [Reading(key='k', values=[5.0, 6.0], ts=2.0, label=None, id=None, refused_label=None)])
    """

    def __init__(self, rules: JoinRules) -> None:
        self.rules = rules
        self._measured = rules.measured
        self._ages = [math.inf if rule.max_age is None else rule.max_age for rule in self._measured]
        self._logs = frozenset(i for i, rule in enumerate(self._measured) if rule.change == "log")
        # By column: what a feature adds to the sample.
        self._plan = list(_plan(rules.features))
        self._head = len(self._measured) * _STRIDE
        self._size = self._head + _HEAD + len(self._measured)
        self._lines: dict[str, _Line] = {}
        self._means = [(0.0, 0.0)] * len(self._measured)  # over all keys: count, mean
        self._changed: set[str] = set()
        self._forgotten: set[str] = set()
        self._absences: list[SensorAbsence] = []
        self._silence = _silence(rules, self._ages)
        self._unmade = True
        self.awaiting: set[int] = set()
        """Features for want of which no key has a sample yet (positions among those of messages)."""

    # ---- what survives a restart -----------------------------------------------------------

    def restore(self, states: dict[str, array[float]], monotonic: float) -> None:
        """Go on from stored states; what is here is forgotten. Those of other features are dropped."""
        self._lines, self._changed, self._forgotten = {}, set(), set()
        self._means = [(0.0, 0.0)] * len(self._measured)
        fitting = {key: state for key, state in states.items() if len(state) >= self._size}
        self._forgotten.update(states.keys() - fitting.keys())
        for key, state in sorted(fitting.items(), key=lambda item: item[1][self._head + _NEWEST]):
            since = state[self._head + _NEWEST]
            self._lines[key] = line = _Line(state[: self._size], monotonic, since)
            label = tuple(state[self._size :])
            line.label = (label[0] if len(label) == 1 else label) if label else None
            for at in range(len(self._measured)):
                self._add_mean(at, state[at * _STRIDE + _COUNT], state[at * _STRIDE + _MEAN])

    def changes(self) -> JoinChanges:
        """Return the changes since the last call."""
        changed, self._changed = self._changed, set()
        forgotten, self._forgotten = self._forgotten, set()
        states: dict[str, array[float] | None] = dict.fromkeys(forgotten)
        return JoinChanges(states | {key: self._lines[key].stored() for key in changed if key in self._lines})

    def absences(self) -> list[SensorAbsence]:
        """Sensors that stay away or came back since the last call."""
        found, self._absences = self._absences, []
        return found

    # ---- observations ----------------------------------------------------------------------

    def accept(self, seen: Observation, ts: float, monotonic: float = 0.0) -> list[Reading]:
        """Add an observation of event time `ts` that arrived at `monotonic`; return the samples it completes.

        A sample has finite values of all columns in `values`, its key, event time, and the label and id of
        the message that made it.
        """
        line = self._line(seen.key, monotonic)
        state, head = line.state, self._head
        made = self._close_periods(seen.key, line, ts) if self.rules.period is not None else []
        for at, value in seen.values:
            self._record(state, at, ts, value)
        if ts > state[head + _NEWEST]:
            if line.since == _NEVER:
                line.since = ts
            state[head + _NEWEST] = ts
            line.heard = monotonic
        state[head + _NEWS] = 1.0
        if seen.label is not None:
            line.label = seen.label
        if self.rules.period is None and self._completes(seen):
            sample = self._sample(seen.key, line, ts, ts)
            if sample is not None:
                made.append(Reading(seen.key, sample, ts, line.label, seen.id, seen.refused_label))
                line.label = None
        return made

    def _completes(self, seen: Observation) -> bool:
        trigger = self.rules.trigger
        if trigger is None:
            return bool(seen.values)
        return any(at == trigger and not math.isnan(value) for at, value in seen.values)

    def _line(self, key: str, monotonic: float) -> _Line:
        self._changed.add(key)
        line = self._lines.pop(key, None)
        if line is None:
            count = len(self._measured)
            start = [_NEVER, math.nan, math.nan, 0.0]
            line = _Line(array("d", _FRESH * count + start + [math.nan] * count), monotonic)
            if len(self._lines) >= MOST_KEYS:
                oldest = next(iter(self._lines))
                del self._lines[oldest]
                self._forgotten.add(oldest)
        self._forgotten.discard(key)
        self._lines[key] = line  # those heard last are at the end
        return line

    def _record(self, state: array[float], at: int, ts: float, value: float) -> None:
        """Put a value into its place in time; one that is older than all that are kept is dropped."""
        if at in self._logs:
            value = math.log(value) if value > 0 else math.nan
        base = at * _STRIDE
        place = base
        while place < base + DEPTH and state[place] > ts:
            place += 1
        if place == base + DEPTH:
            return
        if state[place] != ts:  # the later of two of the same moment takes the other's place
            last = base + DEPTH - 1
            for moved in range(last, place, -1):
                state[moved], state[moved + DEPTH] = state[moved - 1], state[moved + DEPTH - 1]
            state[place] = ts
        state[place + DEPTH] = value
        if not math.isnan(value):
            if ts >= state[base + _LAST]:
                state[base + _LAST], state[base + _LAST + 1] = ts, value
            count = state[base + _COUNT] + 1.0
            state[base + _COUNT] = count
            state[base + _MEAN] += (value - state[base + _MEAN]) / count
            self._add_mean(at, 1.0, value)

    def _add_mean(self, at: int, more: float, mean: float) -> None:
        if more:
            count, known = self._means[at]
            self._means[at] = (count + more, known + (mean - known) * more / (count + more))

    # ---- samples ---------------------------------------------------------------------------

    def _sample(
        self, key: str, line: _Line, upto: float, ts: float, *, open_end: bool = False
    ) -> list[float] | None:
        """The columns of a sample of values not younger than `upto`; None while one of them never came.

        `ts` is the sample's own time; with `open_end` values of the moment `upto` itself do not count.
        """
        state, head = line.state, self._head
        numbers = [self._newest(state, at, upto, most, open_end) for at, most in enumerate(self._ages)]
        absent = [math.isnan(value) for value in numbers]
        self._record_absences(key, state, absent)
        if True in absent:
            numbers = [
                self._filled(state, at, upto) if absent[at] else numbers[at] for at in range(len(absent))
            ]
            awaited = {at for at, value in enumerate(numbers) if math.isnan(value)}
            if awaited:
                self.awaiting = awaited if self._unmade else set()
                return None
        self._unmade, self.awaiting = False, set()
        before = state[head + _HEAD :]
        sample = self._columns(numbers, before, ts, ts - state[head + _SAMPLED])
        state[head + _HEAD :] = array("d", numbers)
        state[head + _SAMPLED], state[head + _NEWS] = ts, 0.0
        return sample + [float(missing) for missing in absent] if self.rules.flags else sample

    def _newest(self, state: array[float], at: int, upto: float, most: float, open_end: bool) -> float:
        """The newest value of a feature up to a moment; NaN if there is none, or it is older than `most`."""
        base = at * _STRIDE
        place = base
        while place < base + DEPTH and (state[place] > upto or (open_end and state[place] == upto)):
            place += 1
        fresh = place < base + DEPTH and upto - state[place] <= most
        return state[place + DEPTH] if fresh else math.nan

    def _filled(self, state: array[float], at: int, upto: float) -> float:
        """What stands for a missing value: the last or the mean of its key; NaN where it never had one.

        Where a flag tells that it is missing, the mean of all keys stands for what never came.
        """
        base = at * _STRIDE
        if self.rules.fill == "last" and state[base + _LAST] <= upto and state[base + _COUNT]:
            return state[base + _LAST + 1]
        if state[base + _COUNT]:
            return state[base + _MEAN]
        return self._means[at][1] if self.rules.flags else math.nan

    def _columns(self, numbers: list[float], before: array[float], ts: float, elapsed: float) -> list[float]:
        """What a sample holds of the values of its features, `before` being those of the last sample."""
        sample: list[float] = []
        for at, kind in self._plan:
            if kind == "value":
                sample.append(numbers[at])
            elif kind in _TIMES:
                sample += _TIMES[kind](ts)
            else:
                step = numbers[at] - before[at]
                step = step if kind == "difference" else step / elapsed if elapsed > 0 else 0.0
                sample.append(0.0 if math.isnan(step) else step)
        return sample

    def _record_absences(self, key: str, state: array[float], absent: list[bool]) -> None:
        gone, back = [], []
        for at, missing in enumerate(absent):
            place = at * _STRIDE + _AWAY
            if missing:
                state[place] += 1.0
                if state[place] == AWAY_AFTER:
                    gone.append(at)
            elif state[place]:
                if state[place] >= AWAY_AFTER:
                    back.append(at)
                state[place] = 0.0
        for away, features in ((True, gone), (False, back)):
            if features:
                self._absences.append(SensorAbsence(key, away, tuple(features)))

    def overdue(self, monotonic: float) -> None:
        """Note the sensors whose newest value is too old by now, also where no sample is made any more.

        What a key has not brought yet is too old `max_age` after its first message, or after a restart.
        """
        for key, line in self._lines.items():
            now = line.state[self._head + _NEWEST] + monotonic - line.heard
            gone = []
            for at, most in enumerate(self._ages):
                base = at * _STRIDE
                if now - max(line.state[base], line.since) > most and line.state[base + _AWAY] < AWAY_AFTER:
                    line.state[base + _AWAY] = AWAY_AFTER
                    gone.append(at)
            if gone:
                self._absences.append(SensorAbsence(key, away=True, features=tuple(gone)))

    # ---- by the clock ----------------------------------------------------------------------

    def tick(self, monotonic: float) -> list[Reading]:
        """The samples by the clock whose stretch of time has passed although nothing more came."""
        made: list[Reading] = []
        if self.rules.period is None:
            return made
        head = self._head
        for key, line in self._lines.items():
            newest = line.state[head + _NEWEST]
            samples = self._close_periods(key, line, newest + max(0.0, monotonic - line.heard))
            if samples:
                self._changed.add(key)
                made += samples
        return made

    def next_tick(self, monotonic: float) -> float:
        """Monotonic time at which `tick` makes the next sample; infinite when none is to come."""
        period = self.rules.period
        if period is None:
            return math.inf
        head = self._head
        soonest = math.inf
        for line in self._lines.values():
            newest, ended = line.state[head + _NEWEST], line.state[head + _ENDED]
            end = (math.floor(newest / period) * period if math.isnan(ended) else ended) + period
            if end <= newest + self._silence or line.state[head + _NEWS]:
                soonest = min(soonest, line.heard + end - newest)
        return max(monotonic, soonest)

    def _close_periods(self, key: str, line: _Line, now: float) -> list[Reading]:
        """Close the periods up to the event time `now`: one sample of each, while the key is not silent."""
        period, made = self.rules.period or 1.0, list[Reading]()
        state, head = line.state, self._head
        newest, ended = state[head + _NEWEST], state[head + _ENDED]
        if newest == _NEVER:
            state[head + _ENDED] = math.floor(now / period) * period
            return made
        while (end := ended + period) <= now:
            if end > newest + self._silence and not state[head + _NEWS]:
                ended = math.floor(now / period) * period  # it slept
                break
            ts = newest if end - period <= newest < end else end
            sample = self._sample(key, line, end, ts, open_end=True)
            if sample is not None:
                made.append(Reading(key, sample, ts, line.label))
                line.label = None
            state[head + _NEWS] = 0.0  # also where a feature is awaited: a key that is silent then rests
            ended = end
        state[head + _ENDED] = ended
        return made


class _Line:
    """One key: its numbers, when its newest value arrived, and a label that waits for the next sample.

    Its sensors are awaited from the event time `since` on.
    """

    __slots__ = ("heard", "label", "since", "state")

    def __init__(self, state: array[float], heard: float, since: float = _NEVER) -> None:
        self.state, self.heard, self.since = state, heard, since
        self.label: LabelValue | None = None

    def stored(self) -> array[float]:
        """Its numbers, and those of the label behind them."""
        label = self.label if isinstance(self.label, tuple) else [] if self.label is None else [self.label]
        return self.state + array("d", label)


def _plan(features: Iterable[FeatureRule]) -> Iterable[tuple[int, str]]:
    """For each feature its position among those of messages, and what the sample holds of it."""
    at = 0
    for rule in features:
        if rule.time is not None:
            yield -1, rule.time
            continue
        yield at, "value" if rule.change in (None, "log") else rule.change
        at += 1


def _silence(rules: JoinRules, ages: list[float]) -> float:
    """Seconds without a message after which a key makes no samples by the clock."""
    period = rules.period or 0.0
    finite = [age for age in ages if age < math.inf]
    return min(max([*finite, SILENT_PERIODS * period]), MOST_PERIODS * period)


def _hour_of_day(ts: float) -> tuple[float, float]:
    moment = time.localtime(ts)
    angle = math.tau * (moment.tm_hour + moment.tm_min / 60 + moment.tm_sec / 3600) / 24
    return math.sin(angle), math.cos(angle)


def _day_of_week(ts: float) -> tuple[float, float]:
    moment = time.localtime(ts)
    angle = math.tau * (moment.tm_wday + moment.tm_hour / 24 + moment.tm_min / 1440) / 7
    return math.sin(angle), math.cos(angle)


_TIMES = {"hour_of_day": _hour_of_day, "day_of_week": _day_of_week}
