"""The samples in a file, for a stream: what its messages would have become."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.config import StreamConfig
from edged.config.features import FixedKey
from edged.domain.stream.sample import Batch, Reading
from edged.domain.stream.temporal_context import TemporalContext
from edged.domain.stream.windowing import Windowing, WindowRules
from edged.errors import ConfigError
from edged.storage.recordings.frame import Frame
from edged.storage.recordings.joined_rows import JoinedRows, LabelCells
from edged.storage.recordings.npz import NpzSource
from edged.storage.recordings.reader import format_of, open_source, read_stream, readable
from edged.storage.recordings.rows import (
    LeftOut,
    Recording,
    RowBlock,
    Source,
    Wanted,
    check_rows,
    find_roles,
    row_blocks,
)

LONGEST_KEY, LONGEST_ID = 256, 128  # as in messages
_ROWS = 8192


class FileReader:
    """Reads files of rows for one stream.

    Rows of which no sample can be made are counted in `left_out`, labels that the stream does not know in
    `refused`: their samples come without. `now` (Unix seconds) is the time of samples in files without times,
    `spacing` seconds apart where they are joined.
    """

    def __init__(self, stream: StreamConfig, now: float, spacing: float = 0.0) -> None:
        self._stream, self._now, self._spacing = stream, now, spacing
        self._schema = stream.to_schema()
        self._labels = LabelCells(self._schema)
        self.left_out, self.refused = LeftOut(), self._labels.refused
        self.unit = "row"

    def wanted(self) -> Wanted:
        """Which columns are looked for: the paths in the stream's messages are their names."""
        stream = self._stream
        key = None if (stream.key_spec or "").startswith("topic:") else stream.key_spec
        return Wanted(tuple((name,) for name in stream.names), stream.label_path, key, stream.ts, stream.id)

    def batches(self, path: Path | Frame, known: str) -> Iterator[Batch]:
        """The samples of a file in the format `known`, in its order; their offsets count from 0.

        Windows are cut, and what is forecast is the label, as in ingest; a window that is not whole at the
        end is dropped. Raises ConfigError when the file is no such file, lacks a feature, or the stream needs
        times that it does not have.
        """
        with readable(path):
            batches = self.readings(path, known)
            if self._stream.window is not None:
                batches = self._windows(batches, self._stream.window.rules())
            if self._schema.task == "forecast":
                batches = self._with_futures(batches)
            first, context = 0, TemporalContext.of(self._schema)
            for batch in batches:
                if len(batch):
                    x = batch.x if context is None else context.extend(batch.keys, batch.x)
                    yield replace(batch, x=x, offsets=np.arange(first, first + len(batch)))
                    first += len(batch)

    # ---- rows to readings ----------------------------------------------------------------------

    def readings(self, path: Path | Frame, known: str) -> Iterator[Batch]:
        """The readings of a file, joined where samples are; windows are not cut yet."""
        with open_source(path, known) as source:
            self.unit = source.unit
            yield from self._joined_batches(source) if self._stream.joined else self._row_batches(source)

    def _joined_batches(self, source: Source) -> Iterator[Batch]:
        self._name_features(source, [feature.name for feature in self._stream.measured])
        joined = JoinedRows(
            self._stream, self._labels, self.left_out,
            default_key=self._default_key(), start=self._now, spacing=self._spacing,
        )  # fmt: skip
        readings = joined.readings(source, self.wanted())
        while part := list(islice(readings, _ROWS)):
            yield self._of(part)

    def _row_batches(self, source: Source) -> Iterator[Batch]:
        width = self._stream.width
        self._name_features(source, self._stream.names or [str(column) for column in range(width)])
        roles = find_roles(source, self.wanted())
        self._check(len(roles.features), width, times="time" in roles.others)
        for block in row_blocks(source, roles, self.left_out):
            yield self._batch(block)

    def _name_features(self, source: Source, names: Sequence[str]) -> None:
        """Name the features of an npz file without names by their position."""
        if isinstance(source, NpzSource) and not source.recording.names:
            self._check(source.recording.x.shape[1], len(names), times=True)
            source.name_features(names)

    def _batch(self, block: RowBlock) -> Batch:
        n, x = len(block), block.x
        keys = block.keys or [self._default_key()] * n
        keep = self.left_out.check(x, block.numbers)
        for i, key in enumerate(keys if block.keys else ()):
            if keep[i] and not 0 < len(key) <= LONGEST_KEY:
                self.left_out.add(f"a key that does not have 1 to {LONGEST_KEY} characters", block.numbers[i])
                keep[i] = False
        labels = [
            self._labels.label(cell, row) for cell, row in zip(block.labels, block.numbers, strict=False)
        ]
        ts = np.array(block.times) if block.times else np.full(n, self._now)
        ids = [name if name is None or len(name) <= LONGEST_ID else None for name in block.ids]
        batch = Batch(np.arange(n), keys, ts, np.full(n, self._now), x, labels or [None] * n, ids)
        return batch if keep.all() else _kept(batch, np.flatnonzero(keep))

    def _check(self, width: int, expected: int, *, times: bool) -> None:
        stream = self._stream
        if width != expected:
            raise ConfigError(
                f"has {width} columns of features, the stream {expected}",
                remedy="name the columns in stream.features",
            )
        if stream.window is not None and stream.window.rate is not None and not times:
            raise ConfigError(
                "has no times, which stream.window.rate needs", remedy="add a column t, time or timestamp"
            )

    def _default_key(self) -> str:
        """The key that the messages of one topic have; of several topics nobody knows which it was."""
        stream = self._stream
        if isinstance(stream.key, FixedKey):
            return stream.key.fixed
        topics = [topic for topic in stream.topics if not {"+", "#"} & {*topic}]
        if len(topics) != 1 or len(stream.topics) != 1:
            return "stream"
        level = (stream.key_spec or "").removeprefix("topic:")
        levels = topics[0].split("/")
        return levels[int(level)] if level.isdecimal() and int(level) < len(levels) else topics[0]

    # ---- readings to samples -------------------------------------------------------------------

    def _windows(self, batches: Iterator[Batch], rules: WindowRules) -> Iterator[Batch]:
        windowing = Windowing(rules, self._stream.width)
        for batch in batches:
            made = cut_windows(batch, windowing)
            if len(made):
                yield made

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


def _kept(batch: Batch, rows: NDArray[np.int64]) -> Batch:
    keys, labels = [batch.keys[i] for i in rows], [batch.labels[i] for i in rows]
    ids = [batch.ids[i] for i in rows] if batch.ids else []
    return Batch(rows, keys, batch.ts[rows], batch.ingested[rows], batch.x[rows], labels, ids)


def cut_windows(batch: Batch, windowing: Windowing) -> Batch:
    """Windows that the readings of a batch complete, with the time of their last reading."""
    ids = batch.ids or [None] * len(batch)
    made = [
        window
        for columns in zip(batch.keys, batch.x, batch.ts.tolist(), batch.labels, ids, strict=True)
        for window in windowing.accept(Reading(*columns))
    ]
    ts = np.array([window.ts for window in made], np.float64)
    return Batch.of(made, [], first=0, now=float(batch.ingested[0]), ts=ts)


def read_recording(path: Path | Frame, stream: StreamConfig) -> Recording:
    """Read a recorded stream for its configuration; where samples are joined, they are joined already.

    Raises as `read_stream`.
    """
    if not stream.joined:
        return read_stream(path, features=stream.names, label=stream.label_path)
    history, schema = FileReader(stream, 0.0, spacing=1.0), stream.to_schema()
    with readable(path):
        batches = list(history.readings(path, format_of(path)))
        check_rows(sum(map(len, batches)))
    batch = Batch.joined(batches)
    nothing = np.nan if schema.targets == 1 else (np.nan,) * schema.targets
    known = any(label is not None for label in batch.labels)
    labels = np.array([nothing if label is None else label for label in batch.labels], np.float64)
    warnings = [history.left_out.line(history.unit), history.refused.line(history.unit, "labels")]
    return Recording(
        batch.x,
        labels if known else None,
        batch.ts,
        batch.keys,
        stream.names,
        tuple(schema.known_classes),
        stream.names,
        "; ".join(line for line in warnings if line),
    )
