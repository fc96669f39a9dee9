"""Sliding windows: readings of several channels become samples, one key at a time.

A window is `size` rows of `c` channels, time-major: its features are the row of the earliest moment, then the
next, and so on. The next window of the key begins `stride` rows later. With a rate the rows lie on a grid of
that many a second, which begins at the first reading, and are interpolated linearly between the readings
around them; without one each reading is a row. A longer break than `max_gap` begins anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

import numpy as np

from edged.domain.arrays import Floats
from edged.domain.stream.sample import LabelValue, Reading

SNAP = 1e-3  # of a period: a reading this near to a moment of the grid is the row of that moment


@dataclass(frozen=True)
class WindowRules:
    """How windows are cut.

    `size` rows each, the next one `stride` rows later; `rate` rows a second, or None for the readings as
    they come; `max_gap` seconds, or None for any; `label` which of the labels inside is the window's: the
    newest, or the most frequent (of equals the newest); `most_keys` with a window open at once.
    """

    size: int
    stride: int
    rate: float | None = None
    max_gap: float | None = None
    label: Literal["last", "majority"] = "last"
    most_keys: int = 256


@dataclass(frozen=True, slots=True)
class WindowHead:
    """Where a key stands: its last reading, and what comes next.

    `ts` and `x` `(c,)` are those of its last reading; `label` one that no row has yet. The grid begins at
    `anchor`, row `next` of it is to come, and `skip` rows are passed over before the next window; `late`
    readings in a row came out of order. All of it holds for one `rate`.
    """

    ts: float
    x: Floats
    label: LabelValue | None
    anchor: float
    next: int
    skip: int
    late: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class OpenWindowRow:
    """A row of an open window: its key, channels `(c,)` and label."""

    key: str
    x: Floats
    label: LabelValue | None


@dataclass
class OpenWindowChanges:
    """What has changed about the open windows: to be stored with what changed it.

    `heads` by key, None for a key that is forgotten; `rows` that are new, by number; `gone` numbers of rows
    that no open window has any more. Storing the same changes twice is the same as once.
    """

    heads: dict[str, WindowHead | None] = field(default_factory=dict)
    rows: dict[int, OpenWindowRow] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)

    def drop(self, numbers: Iterable[int]) -> None:
        """These rows are in no open window any more."""
        self.gone.extend(number for number in numbers if self.rows.pop(number, None) is None)

    def absorb(self, later: OpenWindowChanges) -> None:
        """Apply the changes of a later block."""
        self.heads |= later.heads
        self.rows |= later.rows
        self.drop(later.gone)


@dataclass(frozen=True)
class OpenWindows:
    """Open windows as they were stored: `heads` by key, `rows` by number, rising."""

    heads: dict[str, WindowHead] = field(default_factory=dict)
    rows: dict[int, OpenWindowRow] = field(default_factory=dict)


class Windowing:
    """Cuts the windows of every key of a stream.

    Of more keys than `most_keys` those that were heard last are kept. When as many readings in a row as a
    window has are earlier than the newest one, their key's clock was set back: it begins anew.

    >>> windowing = Windowing(WindowRules(size=3, stride=2), channels=1)
    >>> made = [windowing.accept(Reading("k", [float(t)], float(t))) for t in range(5)]
    >>> [window.values.tolist() for windows in made for window in windows]
    [[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]]
    """

    def __init__(self, rules: WindowRules, channels: int) -> None:
        self.rules = rules
        self._channels = channels
        self._lines: dict[str, _Line] = {}
        self._changes = OpenWindowChanges()
        self._numbers = count(1)
        self.windows = 0  # cut since the start
        self.gaps = 0  # breaks that were too long, and clocks set back: each has begun a window anew
        self.late = 0  # readings that came out of order and were dropped
        self.forgotten = 0  # keys whose open window was dropped because there were too many

    def restore(self, stored: OpenWindows) -> None:
        """Go on from stored windows; what is here is forgotten. Those of another rate are dropped."""
        self._lines, self._changes = {}, OpenWindowChanges()
        self._numbers = count(max(stored.rows, default=0) + 1)
        for key, head in sorted(stored.heads.items(), key=lambda item: item[1].ts):
            if head.rate == self.rules.rate:
                self._lines[key] = _Line(self.rules, self._channels, head)
            else:
                self._changes.heads[key] = None
        for number, row in stored.rows.items():
            line = self._lines.get(row.key)
            if line is not None and len(line.numbers) < self.rules.size:
                line.append(number, row.x, row.label)
            else:
                self._changes.gone.append(number)

    def changes(self) -> OpenWindowChanges:
        """Return the changes since the last call."""
        changes, self._changes = self._changes, OpenWindowChanges()
        changes.heads |= {key: self._lines[key].head() for key in changes.heads if key in self._lines}
        return changes

    def cut(
        self, readings: Iterable[Reading], times: Iterable[float], received: Iterable[float]
    ) -> tuple[list[Reading], list[float], list[float]]:
        """`accept` for many readings: the windows, their ends, and when what completed them was received."""
        windows, ends, completed = [], [], []
        for reading, ts, at in zip(readings, times, received, strict=True):
            for window in self.accept(replace(reading, ts=ts)):
                windows.append(window)
                ends.append(ts if window.ts is None else window.ts)
                completed.append(at)
        return windows, ends, completed

    def accept(self, reading: Reading) -> list[Reading]:
        """Add a reading; return the windows that it completes, oldest first.

        Their key is the reading's, `values` `(size·c,)` float32, `ts` the time of the last row, and the
        newest of them has the reading's id. `reading.ts` must be given.
        """
        ts, key = float(reading.ts or 0.0), reading.key
        x = np.asarray(reading.values, np.float32)
        line = self._line(key, ts, x)
        self._changes.heads[key] = None  # put in by `changes`, as it is then
        if not self._follows(line, ts):
            return []
        made = []
        heard = False
        for moment, row in line.rows_upto(ts, x):
            heard = moment == ts
            if heard:
                line.assign_label(reading.label)
            window = self._add(line, key, row)
            if window is not None:
                made.append(Reading(key, window[0], moment, window[1], source=reading.source))
        if not heard:
            line.assign_label(reading.label)
        line.ts, line.x = ts, x
        if made:
            made[-1] = replace(made[-1], id=reading.id)
        self.windows += len(made)
        return made

    def _line(self, key: str, ts: float, x: Floats) -> _Line:
        line = self._lines.pop(key, None)
        if line is None:
            line = _Line(self.rules, self._channels, WindowHead(ts, x, None, ts, 0, 0, 0, self.rules.rate))
        self._lines[key] = line  # those heard last are at the end
        while len(self._lines) > self.rules.most_keys:
            oldest = next(iter(self._lines))
            self._changes.drop(self._lines.pop(oldest).numbers)
            self._changes.heads[oldest] = None
            self.forgotten += 1
        return line

    def _follows(self, line: _Line, ts: float) -> bool:
        """Whether a reading comes in its turn; after a break its key begins anew with it."""
        if line.next == 0:
            return True
        if ts < line.ts or (self.rules.rate is not None and ts == line.ts):
            line.late += 1
            self.late += 1
            if line.late < self.rules.size:
                return False
        elif self.rules.max_gap is None or ts - line.ts <= self.rules.max_gap:
            line.late = 0
            return True
        self.gaps += 1
        self._changes.drop(line.numbers)
        line.begin(ts)
        return True

    def _add(self, line: _Line, key: str, row: Floats) -> tuple[Floats, LabelValue | None] | None:
        """Put one row behind the others, with the label that waits for it; the window that it completes."""
        label, line.label = line.label, None
        if line.skip:
            line.skip -= 1
            return None
        number = next(self._numbers)
        self._changes.rows[number] = OpenWindowRow(key, row, label)
        line.append(number, row, label)
        if len(line.numbers) < self.rules.size:
            return None
        window = line.window()
        self._changes.drop(line.slide())
        return window


class _Line:
    """One key: the rows of its open window, and where it stands."""

    __slots__ = (
        "_labels", "_rows", "_rules", "anchor", "label", "late", "next", "numbers", "skip", "ts", "x",
    )  # fmt: skip

    def __init__(self, rules: WindowRules, channels: int, head: WindowHead) -> None:
        self._rules = rules
        self._rows = np.empty((rules.size, channels), np.float32)
        self._labels: list[LabelValue | None] = []
        self.numbers: list[int] = []
        self.ts, self.x, self.label, self.late = head.ts, head.x, head.label, head.late
        self.anchor, self.next, self.skip = head.anchor, head.next, head.skip

    def head(self) -> WindowHead:
        return WindowHead(
            self.ts, self.x, self.label, self.anchor, self.next, self.skip, self.late, self._rules.rate
        )

    def begin(self, ts: float) -> None:
        """Drop the rows and start the grid at `ts`."""
        self._labels, self.numbers, self.late, self.label = [], [], 0, None
        self.anchor, self.next, self.skip = ts, 0, 0

    def append(self, number: int, row: Floats, label: LabelValue | None) -> None:
        self._rows[len(self.numbers)] = row
        self._labels.append(label)
        self.numbers.append(number)

    def rows_upto(self, ts: float, x: Floats) -> Iterator[tuple[float, Floats]]:
        """Moments and rows after the last one, up to a reading."""
        rate = self._rules.rate
        if rate is None or self.next == 0:
            self.next += 1
            yield ts, x
            return
        while True:
            moment = self.anchor + self.next / rate
            ahead = (moment - ts) * rate
            if ahead > SNAP:
                return
            self.next += 1
            if ahead > -SNAP:
                yield ts, x
                return
            share, before = (moment - self.ts) / (ts - self.ts), self.x.astype(np.float64)
            yield moment, (before + share * (x - before)).astype(np.float32)

    def assign_label(self, label: LabelValue | None) -> None:
        """Assign a reading's label to the row of its time, or to the first later row."""
        if label is not None:
            self.label = label

    def window(self) -> tuple[Floats, LabelValue | None]:
        """All rows as one vector, and the label of them."""
        return self._rows.reshape(-1).copy(), chosen(self._labels, self._rules.label)

    def slide(self) -> list[int]:
        """Go on to the next window; numbers of the rows that are left behind."""
        stride = self._rules.stride
        kept = max(0, self._rules.size - stride)
        self._rows[:kept] = self._rows[self._rules.size - kept :].copy()
        gone = self.numbers[: self._rules.size - kept]
        del self.numbers[: len(gone)], self._labels[: len(gone)]
        self.skip = max(0, stride - self._rules.size)
        return gone


def chosen(labels: Iterable[LabelValue | None], rule: Literal["last", "majority"]) -> LabelValue | None:
    """The label of a window from those inside, in order of time; None where there is none.

    >>> chosen([0.0, 1.0, None, 0.0, 2.0], "last"), chosen([1.0, 0.0, 0.0, 1.0, None], "majority")
    (2.0, 1.0)
    """
    newest_first = [label for label in reversed(list(labels)) if label is not None]
    if not newest_first:
        return None
    # Counter keeps the order of first sight, so of equally frequent ones the newest is the first.
    return newest_first[0] if rule == "last" else Counter(newest_first).most_common(1)[0][0]
