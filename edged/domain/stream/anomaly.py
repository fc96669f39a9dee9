"""Which samples look normal, and when a run of unusual ones is an alarm.

What is unusual is not learned from and does not move the threshold, so a detector that adapts follows slow
change but does not learn the anomaly; an alarm that lasts stays one until it is accepted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.json_fields import JsonObject
from edged.domain.stream.extreme_values import SpotThreshold
from edged.domain.training.message import Message

KEYS = 10_000  # keys with unusual samples that are followed at the same time, beside those in alarm
SPIKE = 1.5  # in multiples of the threshold: scores up to it that were no alarm count as just normal


@dataclass(frozen=True)
class AnomalyRules:
    """What counts as unusual, and when it is an alarm.

    `rate` is the share of normal samples whose score may pass the threshold. `calibrate` normal scores are
    awaited before there is one, at most `level` and `window`. It follows the mean of the newest `level`
    normal scores and the spread of the newest `window`. An alarm of a key begins when `raise_after` of its
    newest `of` samples are unusual, and is the new normal after `accept_after` seconds, None for never.
    """

    rate: float = 1e-3
    calibrate: int = 100
    window: int = 2000
    level: int = 400
    raise_after: int = 5
    of: int = 10
    accept_after: float | None = None


@dataclass(frozen=True)
class AlarmChange:
    """An alarm of one key begins (`until` None) or ends.

    `offset` is that of the sample that showed it, `first` that of its first unusual one; `since` and `until`
    are the event times of its first and last unusual ones; `peak` is the highest score in multiples of the
    threshold; `samples` how many it has had.
    """

    key: str
    offset: int
    first: int
    since: float
    until: float | None
    samples: int
    peak: float
    accepted: bool = False

    def as_dict(self) -> JsonObject:
        """Return the fields of the event `anomaly`."""
        fields: dict[str, Any] = {"key": self.key, "state": "start" if self.until is None else "end"}
        fields |= {"offset": self.offset, "since": self.since}
        if self.until is not None:
            fields |= {"until": self.until, "samples": self.samples, "accepted": self.accepted}
        return fields | {"peak": round(self.peak, 3)}


@dataclass(frozen=True)
class AnomalyVerdicts:
    """What was found of a batch: `flagged` `(n,)` bool, unusual or within an alarm; alarms that changed."""

    flagged: NDArray[np.bool_]
    changes: list[AlarmChange]


@dataclass(frozen=True)
class AlarmFigures(Message):
    """Threshold (None while it is calibrated), samples and alarms so far, and keys whose alarm stands."""

    threshold: float | None
    flagged: int
    alarms: int
    standing: tuple[str, ...]


@dataclass
class _Line:
    """The newest samples of a key of which one was unusual: offset, whether unusual, event time, ratio."""

    recent: deque[tuple[int, bool, float, float]]
    first: int = -1
    since: float = 0.0
    last: float = 0.0
    samples: int = 0
    peak: float = 0.0
    alarm: bool = False
    accepted: bool = False

    def spike_leaves(self) -> bool:
        """Whether a score that only just passed, and was no alarm, makes room for the next one."""
        if len(self.recent) < (self.recent.maxlen or 0) or self.alarm or self.accepted:
            return False
        _, unusual, _, ratio = self.recent[0]
        return unusual and ratio <= SPIKE

    @property
    def newest(self) -> int:
        return self.recent[-1][0]

    @property
    def unusual(self) -> int:
        return sum(entry[1] for entry in self.recent)


class Anomalies:
    """Judges scores as they come, key by key.

    The threshold follows the scores of all keys that look normal. An alarm of a key begins when `raise_after`
    of its newest `of` samples are unusual, and ends when none of them is. `detect` belongs to one thread, the
    other methods may be called from any.

    >>> found = Anomalies(AnomalyRules(calibrate=100, raise_after=2, of=3))
    >>> usual = np.random.default_rng(0).random(100)
    >>> _ = found.detect(["a"] * 100, np.arange(100), np.arange(100.0), usual)
    >>> new = np.arange(100, 103)
    >>> judged = found.detect(["a"] * 3, new, 1.0 * new, np.array([0.5, 9.0, 9.0]))
    >>> judged.flagged.tolist(), judged.changes[0].since
    ([False, True, True], 101.0)
    """

    def __init__(self, rules: AnomalyRules) -> None:
        self._rules = rules
        self._normal = SpotThreshold(rules.rate, rules.calibrate, rules.window, rules.level)
        self._lines: dict[str, _Line] = {}
        self._aside: list[int] = []
        self._back: list[tuple[str, int]] = []
        self._pending: list[AlarmChange] = []
        self._lock = threading.Lock()
        self.flagged = 0
        self.alarms = 0

    @property
    def threshold(self) -> float | None:
        """Scores above it are unusual; None until enough normal ones are known."""
        return self._normal.threshold

    @property
    def limit(self) -> float:
        """The largest error that says anything of a model: the threshold; infinite until there is one."""
        threshold = self._normal.threshold
        return float("inf") if threshold is None else threshold

    # ---- judging ---------------------------------------------------------------------------

    def detect(
        self, keys: Sequence[str], offsets: NDArray[np.int64], ts: NDArray[np.float64], scores: NDArray[Any]
    ) -> AnomalyVerdicts:
        """Judge samples in order of arrival.

        The samples have `n` keys, `(n,)` offsets and `(n,)` event times. Of the `(n,)` scores, one that is no
        finite number counts as unusual.
        """
        scores = np.where(np.isfinite(scores), scores, np.inf).astype(np.float64)
        with self._lock:
            changes, self._pending = self._pending, []
            threshold = self._normal.threshold
            if threshold is None:
                return AnomalyVerdicts(self._calibrate(keys, offsets, scores), changes)
            unusual = scores > threshold
            flagged = unusual.copy()
            fit = ~unusual
            spikes = 0
            for i in self._to_follow(keys, unusual):
                ratio = min(float(scores[i] / threshold), 1e6) if threshold > 0 else 1.0
                line = self._line(keys[i])
                spikes += line.spike_leaves()
                change = self._follow(line, keys[i], int(offsets[i]), float(ts[i]), bool(unusual[i]), ratio)
                flagged[i] = (unusual[i] or line.alarm) and not line.accepted
                # What a person has accepted moves the threshold, however high it is.
                fit[i] = (not flagged[i]) and bool(np.isfinite(scores[i]))
                if change is not None:
                    changes.append(change)
                if not line.alarm and not line.unusual:
                    del self._lines[keys[i]]
            self._aside += offsets[flagged].tolist()
            self.flagged += int(flagged.sum())
            # Without those that only just passed it would sink, and more and more be unusual.
            self._normal.add(np.append(scores[fit], np.full(spikes, threshold)))
        return AnomalyVerdicts(flagged, changes)

    def _calibrate(
        self, keys: Sequence[str], offsets: NDArray[np.int64], scores: NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Without a threshold only keys whose alarm stands are flagged, and all others' scores are normal."""
        standing = {key for key, line in self._lines.items() if line.alarm}
        flagged = np.array([key in standing for key in keys], bool)
        self._aside += offsets[flagged].tolist()
        self.flagged += int(flagged.sum())
        self._normal.add(scores[~flagged & np.isfinite(scores)])
        return flagged

    def _to_follow(self, keys: Sequence[str], unusual: NDArray[np.bool_]) -> Sequence[int]:
        """Positions of samples whose key has, or now gets, an unusual one among its newest."""
        if not self._lines and not unusual.any():
            return ()
        following = {*self._lines, *(keys[i] for i in np.flatnonzero(unusual).tolist())}
        return [i for i, key in enumerate(keys) if key in following]

    def _line(self, key: str) -> _Line:
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= KEYS:
                oldest = next((name for name, kept in self._lines.items() if not kept.alarm), key)
                self._lines.pop(oldest, None)
            line = self._lines[key] = _Line(deque(maxlen=self._rules.of))
        return line

    def _follow(
        self, line: _Line, key: str, offset: int, ts: float, unusual: bool, ratio: float
    ) -> AlarmChange | None:
        line.recent.append((offset, unusual, ts, ratio))
        if line.alarm:
            line.samples += 1
            if unusual:
                line.last, line.peak = ts, max(line.peak, ratio)
            patience = self._rules.accept_after
            if patience is not None and ts - line.since > patience:
                return self._accept(key, line)
            return self._end_alarm(key, line) if line.unusual == 0 else None
        if line.accepted or line.unusual < self._rules.raise_after:
            return None
        return self._start_alarm(key, line)

    def _start_alarm(self, key: str, line: _Line) -> AlarmChange:
        start = next(i for i, entry in enumerate(line.recent) if entry[1])
        run = list(line.recent)[start:]
        line.alarm, line.first, line.since, line.last = True, run[0][0], run[0][2], run[-1][2]
        line.samples, line.peak = len(run), max(entry[3] for entry in run)
        # Those in between looked normal, but belong to it.
        self._aside += [entry[0] for entry in run if not entry[1]]
        self.alarms += 1
        return AlarmChange(key, line.newest, line.first, line.since, None, line.samples, line.peak)

    def _end_alarm(self, key: str, line: _Line, *, accepted: bool = False) -> AlarmChange:
        line.alarm = False
        return AlarmChange(
            key, line.newest, line.first, line.since, line.last, line.samples, line.peak, accepted
        )

    def _accept(self, key: str, line: _Line) -> AlarmChange:
        line.accepted = True
        self._normal.restart()
        self._back.append((key, line.first))
        return self._end_alarm(key, line, accepted=True)

    # ---- what others ask for ---------------------------------------------------------------

    def accept(self, key: str | None = None) -> int:
        """Alarms that stand, of one key or of all, are normal from now on; how many there were.

        The threshold is calibrated anew. Until its scores are below it, nothing of such a key is unusual.
        """
        with self._lock:
            standing = [
                (name, line)
                for name, line in self._lines.items()
                if line.alarm and (key is None or name == key)
            ]
            self._pending += [self._accept(name, line) for name, line in standing]
        return len(standing)

    def pop_changes(self) -> tuple[list[int], list[tuple[str, int]]]:
        """Return the changes since the last call: offsets to exclude, and those to include again.

        The latter as pairs of a key and an offset: samples of that key from there on.
        """
        with self._lock:
            aside, self._aside = self._aside, []
            back, self._back = self._back, []
        return aside, back

    def standing(self) -> list[str]:
        """Return the keys with an active alarm."""
        with self._lock:
            return sorted(key for key, line in self._lines.items() if line.alarm)

    def figures(self) -> AlarmFigures:
        """Return the values for metrics."""
        return AlarmFigures(self.threshold, self.flagged, self.alarms, tuple(self.standing()))

    # ---- over a restart --------------------------------------------------------------------

    def forget_keys(self) -> None:
        """Forget every key, with its alarm; the threshold stays."""
        with self._lock:
            self._lines, self._aside, self._back, self._pending = {}, [], [], []

    def state(self) -> JsonObject:
        """What a restart goes on from, ready for JSON."""
        with self._lock:
            return {
                "normal": self._normal.state(),
                "flagged": self.flagged,
                "alarms": self.alarms,
                "lines": {
                    key: [list(line.recent), line.first, line.since, line.last, line.samples, line.peak,
                          line.alarm, line.accepted]
                    for key, line in self._lines.items()
                },
            }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave.

        Raises LookupError, TypeError or ValueError when it is something else; nothing is changed then.
        """
        lines = {
            str(key): _Line(deque((tuple(e) for e in recent), maxlen=self._rules.of), *rest)
            for key, (recent, *rest) in state["lines"].items()
        }
        flagged, alarms = int(state["flagged"]), int(state["alarms"])
        self._normal.restore(state["normal"])
        self._lines, self.flagged, self.alarms = lines, flagged, alarms
