"""The samples in a file of rows, for a stream: what its messages would have become."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.domain.stream.sample import Batch, Reading
from edged.domain.stream.windowing import Windowing
from edged.errors import ConfigError, RejectedSampleError
from edged.storage.recordings.formats import open_source, readable
from edged.storage.recordings.npz_file import read_npz
from edged.storage.recordings.rows import LeftOut, Roles, RowBlock, Wanted, find_roles, row_blocks, text

if TYPE_CHECKING:
    from edged.config import StreamConfig
    from edged.domain.stream.sample import LabelValue
    from edged.domain.stream.windowing import WindowRules

LONGEST_KEY, LONGEST_ID = 256, 128  # as in messages
_ROWS = 8192


class History:
    """Reads files of rows for one stream.

    Rows of which no sample can be made are counted in `left_out`, labels that the stream does not know in
    `refused`: their samples come without. `now` (Unix seconds) is the time of samples in files without times.
    """

    def __init__(self, stream: StreamConfig, now: float) -> None:
        self._stream, self._now = stream, now
        self._schema = stream.to_schema()
        self._classes = frozenset(self._schema.classes)
        self._labels: dict[tuple[type, str], LabelValue | None] = {}
        self.left_out, self.refused = LeftOut(), LeftOut()
        self.unit = "row"

    def wanted(self) -> Wanted:
        """Which columns are looked for: the paths in the stream's messages are their names."""
        stream = self._stream
        key = None if (stream.key or "").startswith("topic:") else stream.key
        return Wanted(tuple((name,) for name in stream.names), stream.label, key, stream.ts, stream.id)

    def batches(self, path: Path, known: str) -> Iterator[Batch]:
        """The samples of a file in the format `known`, in its order; their offsets count from 0.

        Windows are cut, and what is forecast is the label, as in ingest; a window that is not whole at the
        end is dropped. Raises ConfigError when the file is no such file, lacks a feature, or the stream needs
        times that it does not have.
        """
        with readable(path):
            batches = self._npz_batches(path) if known == "npz" else self._row_batches(path, known)
            if self._stream.window is not None:
                batches = self._windows(batches, self._stream.window.rules())
            if self._schema.task == "forecast":
                batches = self._with_futures(batches)
            first = 0
            for batch in batches:
                if len(batch):
                    yield replace(batch, offsets=np.arange(first, first + len(batch)))
                    first += len(batch)

    # ---- rows to readings ----------------------------------------------------------------------

    def _row_batches(self, path: Path, known: str) -> Iterator[Batch]:
        with open_source(path, known) as source:
            roles, self.unit = find_roles(source, self.wanted()), source.unit
            self._check(len(roles.features), times="time" in roles.others)
            for block in row_blocks(source, roles, self.left_out):
                yield self._batch(block)

    def _batch(self, block: RowBlock) -> Batch:
        n, x = len(block), block.x
        keys = block.keys or [self._default_key()] * n
        self.left_out.total += n
        keep = self.left_out.check(x, block.numbers)
        for i, key in enumerate(keys if block.keys else ()):
            if keep[i] and not 0 < len(key) <= LONGEST_KEY:
                self.left_out.add(f"a key that does not have 1 to {LONGEST_KEY} characters", block.numbers[i])
                keep[i] = False
        labels = [self._label(cell, row) for cell, row in zip(block.labels, block.numbers, strict=False)]
        ts = np.array(block.times) if block.times else np.full(n, self._now)
        ids = [name if name is None or len(name) <= LONGEST_ID else None for name in block.ids]
        batch = Batch(np.arange(n), keys, ts, np.full(n, self._now), x, labels or [None] * n, ids)
        return batch if keep.all() else _kept(batch, keep.tolist())

    def _npz_batches(self, path: Path) -> Iterator[Batch]:
        recorded = read_npz(path, "key")
        self._check(recorded.x.shape[1], times=recorded.t is not None)
        roles = Roles((), {})
        y: list[Any] = [None] * len(recorded) if recorded.y is None else recorded.y.tolist()
        if recorded.classes:
            y = [None if math.isnan(label) else recorded.classes[int(label)] for label in y]
        for start in range(0, len(recorded), _ROWS):
            part = slice(start, start + _ROWS)
            block = RowBlock(roles, labels=y[part], keys=(recorded.key or [])[part])
            block.numbers = list(range(start, min(start + _ROWS, len(recorded))))
            block.values.frombytes(recorded.x[part].astype(np.float64).tobytes())
            block.times = [] if recorded.t is None else recorded.t[part].tolist()
            yield self._batch(block)

    def _check(self, width: int, *, times: bool) -> None:
        stream = self._stream
        if width != stream.width:
            raise ConfigError(
                f"has {width} columns of features, the stream {stream.width}",
                remedy="name the columns in stream.features",
            )
        if stream.window is not None and stream.window.rate is not None and not times:
            raise ConfigError(
                "has no times, which stream.window.rate needs", remedy="add a column t, time or timestamp"
            )

    def _default_key(self) -> str:
        """The key that the messages of one topic have; of several topics nobody knows which it was."""
        stream = self._stream
        topics = [topic for topic in stream.topics if not {"+", "#"} & {*topic}]
        if len(topics) != 1 or len(stream.topics) != 1:
            return "stream"
        level = (stream.key or "").removeprefix("topic:")
        levels = topics[0].split("/")
        return levels[int(level)] if level.isdecimal() and int(level) < len(levels) else topics[0]

    def _label(self, cell: Any, row: int) -> LabelValue | None:
        """A label as messages have it: a name of a class, or a number, also one that is written as text."""
        if self._schema.task in ("reconstruct", "forecast"):
            return None
        told = text(cell)
        if not told or told.lower() == "nan":
            return None
        self.refused.total += 1
        try:
            return self._labels[type(cell), told]
        except KeyError:
            label = self._parsed(cell, told, row)
            if len(self._labels) < _ROWS and label is not None:
                self._labels[type(cell), told] = label
            return label

    def _parsed(self, cell: Any, told: str, row: int) -> LabelValue | None:
        value = told if isinstance(cell, str) else cell
        if value is told and told not in self._classes:
            with suppress(ValueError):
                value = float(told)
        try:
            return self._schema.parse_label(value)
        except RejectedSampleError as problem:
            self.refused.add(f"an unknown value ({problem.what})", row)
            return None

    # ---- readings to samples -------------------------------------------------------------------

    def _windows(self, batches: Iterator[Batch], rules: WindowRules) -> Iterator[Batch]:
        windowing = Windowing(rules, self._stream.width)
        for batch in batches:
            ids = batch.ids or [None] * len(batch)
            made = [
                window
                for columns in zip(batch.keys, batch.x, batch.ts.tolist(), batch.labels, ids, strict=True)
                for window in windowing.accept(Reading(*columns))
            ]
            ts = np.array([window.ts for window in made], np.float64)
            if made:
                yield Batch.of(made, [], first=0, now=self._now, ts=ts)

    def _with_futures(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Hold each sample back until what it forecasts has come; those at the end have no label."""
        columns, horizon = list(self._stream.forecast_columns), self._stream.horizon
        waiting: dict[str, collections.deque[Reading]] = {}
        for batch in batches:
            done = []
            for key, x, ts in zip(batch.keys, batch.x, batch.ts.tolist(), strict=True):
                line = waiting.setdefault(key, collections.deque())
                if len(line) == horizon:
                    future = x[columns].tolist()
                    label = future[0] if len(future) == 1 else tuple(future)
                    done.append(replace(line.popleft(), label=label))
                line.append(Reading(key, x, ts))
            yield self._of(done)
        yield self._of([reading for line in waiting.values() for reading in line])

    def _of(self, readings: list[Reading]) -> Batch:
        ts = np.array([reading.ts for reading in readings], np.float64)
        return Batch.of(readings, [], first=0, now=self._now, ts=ts)


def _kept(batch: Batch, keep: Sequence[bool]) -> Batch:
    rows = np.flatnonzero(keep)
    return Batch(
        rows,
        [batch.keys[i] for i in rows],
        batch.ts[rows],
        batch.ingested[rows],
        batch.x[rows],
        [batch.labels[i] for i in rows],
        [batch.ids[i] for i in rows] if batch.ids else [],
    )
