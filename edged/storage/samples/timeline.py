"""Samples of one key over time, for pictures: counted exactly, read in short ranges spread evenly.

A picture needs no more than some values a pixel. So of a long stretch a few neighbouring rows are read at
each of some hundred moments, by the index over key and time: of a million rows that takes 10 ms and their
exact count 0.1 s, where reading all takes 2 s. A summary of its own would have to be kept true by every
commit, eviction and erasure. What happens between two of the moments is not seen until somebody zooms in;
`PictureRows.every` says so.

Each piece is a read transaction of its own: neither commits nor the write-ahead log wait for a picture.
"""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.stream.schema import Schema
from edged.domain.stream.temporal_context import pad
from edged.storage.files.database import json_list
from edged.storage.samples.log import SampleLog
from edged.storage.samples.rows import CHECKED, is_whole

MOST_ROWS, MOST_BYTES = 4000, 4 << 20  # that one picture reads
RANGES, PER_RANGE = 600, 4  # short ranges of a stretch that has more, and rows of each
PIECE_ROWS, PIECE_BYTES = 200, 1 << 18  # in one read transaction

_ROW = """offset, ts, substr(x, 1, ?), CASE WHEN label_seq IS NULL THEN NULL ELSE y END
    FROM samples WHERE key = ?"""
_NEXT = f"SELECT {_ROW} AND (ts, offset) > (?, ?) AND ts <= ? ORDER BY ts, offset LIMIT ?"
_RANGE = f"SELECT {_ROW} AND ts >= ? AND ts <= ? ORDER BY ts, offset LIMIT ?"
_COUNT = "SELECT count(*) FROM samples WHERE key = ? AND ts BETWEEN ? AND ?"
_ENDS = "SELECT (SELECT min(ts) FROM samples WHERE key = ?1), (SELECT max(ts) FROM samples WHERE key = ?1)"
_INPUTS = f"""SELECT offset, {CHECKED} FROM samples
    WHERE offset IN (SELECT value FROM json_each(?)) ORDER BY offset"""


@dataclass(frozen=True)
class PictureRows:
    """`n` of `count` samples in order of time.

    `offsets` `(n,)` int64, `ts` `(n,)` Unix seconds, `low` and `high` `(n, f)` the chosen features, which
    differ where a sample is a window. `y[i]` is the label as column `y` has it, None without one that counts.
    """

    count: int
    offsets: NDArray[np.int64]
    ts: NDArray[np.float64]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    y: list[Any]

    @property
    def every(self) -> int:
        """1 where all samples are here, n where every n-th is."""
        return max(1, round(self.count / len(self.y))) if self.y else 1


class TimelineReader:
    """Reads `log`, a connection of its own to a log that has the index over key and time."""

    def __init__(self, log: SampleLog, schema: Schema) -> None:
        self._log, self._schema = log, schema
        self._size = 4 * schema.measured

    def keys(self, most: int) -> list[str]:
        """The first `most` keys, in their order."""
        found: list[str] = []
        key: str | None = ""
        with self._log.looking() as db:
            while len(found) < most:
                (key,) = db.execute("SELECT min(key) FROM samples WHERE key > ?", (key,)).fetchone()
                if key is None:
                    break
                found.append(key)
        return found

    def newest_key(self) -> str | None:
        """The key of the newest sample; None for an empty log."""
        with self._log.looking() as db:
            row = db.execute("SELECT key FROM samples ORDER BY offset DESC LIMIT 1").fetchone()
        return None if row is None else str(row[0])

    def ends(self, key: str) -> tuple[float, float] | None:
        """Times of the first and the last sample of a key; None without one."""
        with self._log.looking() as db:
            first, last = db.execute(_ENDS, (key,)).fetchone()
        return None if first is None else (first, last)

    def count(self, key: str, first: float, last: float) -> int:
        """How many samples of a key there are from `first` to `last`, both included."""
        with self._log.looking() as db:
            return int(db.execute(_COUNT, (key, first, last)).fetchone()[0])

    def read(self, key: str, first: float, last: float, columns: Sequence[int]) -> PictureRows:
        """Samples of a key from `first` to `last`: all, or some at moments that are spread evenly.

        `columns` are places of features in a reading. At most `MOST_ROWS` are read, and about `MOST_BYTES`.
        """
        count = self.count(key, first, last)
        most = max(1, min(MOST_ROWS, MOST_BYTES // self._size))
        found = self._all(key, first, last) if count <= most else self._some(key, first, last, most)
        offsets: list[int] = []
        times: list[float] = []
        labels: list[Any] = []
        values = [np.empty((0, 2, len(columns)), np.float32)]
        for piece in found:
            rows = [row for row in piece if len(row[2]) == self._size]
            if rows:
                offsets += [row[0] for row in rows]
                times += [row[1] for row in rows]
                labels += [row[3] for row in rows]
                values.append(self._values([row[2] for row in rows], columns))
        both = np.concatenate(values)
        return PictureRows(
            count, np.array(offsets, np.int64), np.array(times, np.float64), both[:, 0], both[:, 1], labels
        )

    def inputs(self, offsets: Sequence[int]) -> tuple[list[int], NDArray[np.float32]]:
        """Read what a model takes, `(n, width)`, of those of these samples that are there and undamaged."""
        width = self._schema.width
        with self._log.looking() as db:
            rows = db.execute(_INPUTS, (json_list(list(offsets)),)).fetchall()
        good = [row for row in rows if is_whole(row[1:], self._size)]
        x = [pad(np.frombuffer(row[4], "<f4").astype(np.float32)[None], width) for row in good]
        return [row[0] for row in good], np.concatenate([np.empty((0, width), np.float32), *x])

    def _per_piece(self) -> int:
        return max(1, min(PIECE_ROWS, PIECE_BYTES // self._size))

    def _all(self, key: str, first: float, last: float) -> Iterator[list[Any]]:
        at, most = (math.nextafter(first, -math.inf), 2**62), self._per_piece()
        while True:
            with self._log.looking() as db:
                rows = db.execute(_NEXT, (self._size, key, *at, last, most)).fetchall()
            yield rows
            if len(rows) < most:
                return
            at = rows[-1][1], rows[-1][0]

    def _some(self, key: str, first: float, last: float, most: int) -> Iterator[list[Any]]:
        """At most `most` rows; a range ends where the next one begins."""
        ranges = min(RANGES, most)
        per_range = min(PER_RANGE, most // ranges)
        edges = np.linspace(first, last, ranges + 1).tolist()
        together = max(1, self._per_piece() // per_range)
        for start in range(0, ranges, together):
            rows: list[Any] = []
            with self._log.looking() as db:
                for place in range(start, min(start + together, ranges)):
                    upto = last if place == ranges - 1 else math.nextafter(edges[place + 1], -math.inf)
                    rows += db.execute(_RANGE, (self._size, key, edges[place], upto, per_range)).fetchall()
            yield rows

    def _values(self, blobs: list[bytes], columns: Sequence[int]) -> NDArray[np.float32]:
        """Least and largest values of the readings of each sample, `(n, 2, f)`."""
        schema = self._schema
        x = np.frombuffer(b"".join(blobs), "<f4").reshape(len(blobs), schema.steps, schema.channels)
        chosen = x[:, :, list(columns)]
        return np.stack([np.fmin.reduce(chosen, axis=1), np.fmax.reduce(chosen, axis=1)], axis=1)
