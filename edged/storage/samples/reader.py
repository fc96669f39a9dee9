"""Reading samples for training and judging, straight into contiguous arrays."""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import merge
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.seeded_rng import SeededRng
from edged.domain.stream.open_classes import counted
from edged.domain.stream.sample import Rejected, StoredSample, Window
from edged.domain.stream.schema import Schema
from edged.domain.stream.temporal_context import pad
from edged.domain.training.batch_pool import codes_of, within_shares
from edged.errors import CorruptError
from edged.logs import get_logger
from edged.storage.files.database import file_bytes, json_list, snapshot
from edged.storage.samples import side_tables
from edged.storage.samples.rows import CHECKED, is_whole
from edged.storage.samples.side_tables import ImportProgress
from edged.storage.samples.tables import SampleCounts

log = get_logger("edged.samples")

_CHUNK = 1024
_USUAL = 2000  # labels by which the usual shares of their sources are known
_NO_LIMIT = 2**62
_COLUMNS = f"offset, label_seq, {CHECKED}"
# Both forms are answered from the partial indexes alone; `tables.KEY_INDEX` is for those of one key.
_TRAINING = "label_seq IS NOT NULL AND holdout = 0"
_HOLDOUT = "label_seq IS NOT NULL AND holdout = 1"


@dataclass
class Counters(SampleCounts):
    """What the sample log holds and has seen; `bytes` is its size on the disk."""

    bytes: int

    @property
    def last_seq(self) -> int:
        """Newest position in label order, 0 before the first label."""
        return self.next_seq - 1


class WindowReader:
    """The reading side of a sample log; each call sees one consistent state.

    Calls from several threads wait for each other. A log of one's own, opened for reading, does
    not wait for commits.
    """

    def __init__(self, db: sqlite3.Connection, path: Path, schema: Schema) -> None:
        self._db = db
        self._path = path
        self._schema = schema
        self._lock = threading.RLock()

    # ---- windows ---------------------------------------------------------------------------

    def training_window(self, after_seq: int, limit: int, *, upto_seq: int | None = None) -> Window:
        """Labelled samples that may be trained on, with `after_seq < seq <= upto_seq`.

        The newest `limit` of them, oldest label first. Holdout samples are never among them.
        """
        return self._labelled(_TRAINING, after_seq + 1, _upto(upto_seq), limit)

    def training_parts(
        self, after_seq: int, limit: int, size: int, *, upto_seq: int | None = None
    ) -> list[int]:
        """Positions in label order between parts of about `size` samples of what `training_window` gives.

        The first is that before the window, the last its end; none for an empty window.
        """
        with self._reading():
            found = self._db.execute(
                f"SELECT label_seq FROM samples WHERE {_TRAINING} AND label_seq BETWEEN ? AND ?"
                " ORDER BY label_seq DESC LIMIT ?",
                (after_seq + 1, _upto(upto_seq), limit),
            )
            seqs = [row[0] for row in found][::-1]
        count = max(1, round(len(seqs) / size))
        ends = [seqs[len(seqs) * made // count - 1] for made in range(1, count + 1)] if seqs else []
        return [seqs[0] - 1, *ends] if seqs else []

    def holdout_window(self, limit: int, *, before_seq: int | None = None) -> Window:
        """The newest `limit` labelled holdout samples (with `seq < before_seq`), oldest label first."""
        return self.bounded(self._labelled(_HOLDOUT, 0, _upto(before_seq, 1), limit))

    def bounded(self, window: Window) -> Window:
        """A window without what a source of labels gave beyond its share, by the labels before the window."""
        if len(window) == 0:
            return window
        sources = self._column("source", window.offsets.tolist())
        numbers = np.array([sources.get(offset) or 0 for offset in window.offsets.tolist()], np.int64)
        if not numbers.any():
            return window  # labels without a source have no bound
        with self._reading():
            before = self._db.execute(
                "SELECT source, count(*) FROM"
                f" (SELECT source FROM samples WHERE {_TRAINING} AND label_seq < ?"
                " ORDER BY label_seq DESC LIMIT ?)"
                " WHERE source IS NOT NULL GROUP BY source",
                (int(window.seq[0]), _USUAL),
            ).fetchall()
        within = within_shares(numbers, dict(before))
        return window if within.all() else window.take(within)

    def older_holdout(self, limit: int, before_seq: int) -> Window:
        """At most `limit` holdout samples with `seq < before_seq`, spread evenly over all.

        One is drawn from each of `limit` equal stretches of label order; the same arguments on the
        same log give the same samples.
        """
        with self._reading():
            found = self._db.execute(
                f"SELECT label_seq FROM samples WHERE {_HOLDOUT} AND label_seq < ? ORDER BY label_seq",
                (before_seq,),
            )
            seqs = np.fromiter((row[0] for row in found), np.int64)
            chosen = seqs[_spread(len(seqs), limit)]
            return self._read(
                f"SELECT {_COLUMNS} FROM samples WHERE {_HOLDOUT} AND label_seq IN"
                " (SELECT value FROM json_each(?)) ORDER BY label_seq",
                (json_list(chosen.tolist()),),
                len(chosen),
            )

    def rows(self, offsets: NDArray[np.int64] | Iterable[int]) -> Window:
        """The labelled ones of these samples, in this order; those that are gone are left out."""
        wanted = np.asarray(offsets if isinstance(offsets, np.ndarray) else list(offsets), np.int64).reshape(
            -1
        )
        unique = sorted(set(wanted.tolist()))  # np.unique imports numpy.ma: 1 MB
        with self._reading():
            found = self._read(
                f"SELECT {_COLUMNS} FROM samples WHERE label_seq IS NOT NULL AND offset IN"
                " (SELECT value FROM json_each(?)) ORDER BY offset",
                (json_list(unique),),
                len(unique),
            )
        place = np.searchsorted(found.offsets, wanted)
        present = place < len(found)
        present[present] = found.offsets[place[present]] == wanted[present]
        return found.take(place[present])

    def stored(self, offsets: Sequence[int]) -> list[StoredSample]:
        """Those of these samples of a stream of classes that are still here, in order of arrival."""
        with self._reading():
            found = self._whole(
                self._db.execute(
                    f"SELECT {_COLUMNS} FROM samples WHERE offset IN (SELECT value FROM json_each(?))"
                    " ORDER BY offset",
                    (json_list(offsets),),
                ).fetchall()
            )
            becomes = [] if self._schema.open is None else side_tables.read_classes(self._db)
        if not found:
            return []
        y = np.array([[-1.0 if row[6] is None or row[1] is None else row[6]] for row in found], np.float32)
        if becomes:
            y[y >= 0] = counted([one.becomes for one in becomes], y[y >= 0])
        labels = [None if label < 0 else int(label) for label in y[:, 0].tolist()]
        x = self._inputs([row[5] for row in found])
        return [StoredSample(row[0], row[2], row[3], x[at], labels[at]) for at, row in enumerate(found)]

    def keys(self, offsets: NDArray[np.int64]) -> list[str | None]:
        """The keys of these samples; None for what is gone."""
        wanted = offsets.tolist()
        found = self._column("key", wanted)
        return [found.get(offset) for offset in wanted]

    def places(self, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers for the keys of these samples, and which of its key each is, both `(n,)`.

        Places are counted over what is still here from the oldest of them on.
        """
        codes, places = codes_of(self.keys(offsets)), np.zeros(len(offsets), np.int64)
        if len(offsets) == 0:
            return codes, places
        with self._reading():
            found = self._db.execute(
                "SELECT offset, place FROM (SELECT offset,"
                " row_number() OVER (PARTITION BY key ORDER BY offset) AS place"
                " FROM samples WHERE offset BETWEEN ? AND ?)"
                " WHERE offset IN (SELECT value FROM json_each(?))",
                (int(offsets.min()), int(offsets.max()), json_list(offsets.tolist())),
            )
            known = dict(found.fetchall())
        return codes, np.array([known.get(offset, 0) for offset in offsets.tolist()], np.int64)

    # ---- figures ---------------------------------------------------------------------------

    def next_offset(self) -> int:
        """The offset for the next sample: one more than the largest ever given; 1 at first."""
        return self._tally().next_offset

    def last_seq(self) -> int:
        """Newest position in label order, 0 before the first label."""
        return self._tally().next_seq - 1

    def relabelled(self) -> int:
        """How many labels ever replaced an earlier one."""
        return self._tally().relabelled

    def labelled_since(self, seq: int) -> int:
        """Labelled samples after `seq` that may be trained on."""
        with self._reading():
            found = self._db.execute(
                f"SELECT count(*) FROM samples WHERE {_TRAINING} AND label_seq > ?", (seq,)
            ).fetchone()
        return int(found[0])

    def imported(self, file: str) -> ImportProgress | None:
        """Read how much is stored of a file, by the SHA-256 of its content; None for an unknown one."""
        with self._reading():
            return side_tables.read_import(self._db, file)

    def counters(self) -> Counters:
        """Read all counters, at one moment."""
        return Counters(**vars(self._tally()), bytes=file_bytes(self._path))

    def quarantine(self, limit: int) -> list[Rejected]:
        """Read the newest rejected messages, newest first."""
        with self._reading():
            return side_tables.newest_rejections(self._db, limit)

    def quarantine_counts(self) -> dict[str, int]:
        """Count all messages that were ever rejected, by reason."""
        with self._reading():
            return side_tables.rejection_counts(self._db)

    def recent_packets(self, limit: int) -> list[tuple[int, int]]:
        """`(packet id, checksum)` of the newest messages in order of arrival: `limit` of them or more.

        After a restart they tell which deliveries had been stored but not yet acknowledged.
        """
        with self._reading():
            rows = self._db.execute(
                "SELECT offset, packet FROM samples ORDER BY offset DESC LIMIT ?", (limit,)
            ).fetchall()
            other = self._db.execute(
                "SELECT next_offset - 0.5, packet FROM packets ORDER BY number DESC LIMIT ?", (limit,)
            ).fetchall()
        in_order = merge(reversed(rows), reversed(other), key=lambda row: float(row[0]))
        return [(packet & 0xFFFF, packet >> 16) for _, packet in in_order if packet is not None]

    # ---- reading ---------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, snapshot(self._db, self._path):
            yield

    def _column(self, name: str, offsets: Sequence[int]) -> dict[int, Any]:
        """One column of those of these samples that are still here, by offset."""
        wanted = f"SELECT offset, {name} FROM samples WHERE offset IN (SELECT value FROM json_each(?))"
        with self._reading():
            return dict(self._db.execute(wanted, (json_list(offsets),)).fetchall())

    def _tally(self) -> SampleCounts:
        with self._reading():
            return SampleCounts.read(self._db)

    def _labelled(self, role: str, first: int, last: int, limit: int) -> Window:
        newest = f"""SELECT label_seq FROM samples WHERE {role} AND label_seq BETWEEN ? AND ?
            ORDER BY label_seq DESC LIMIT ?"""
        with self._reading():
            count, start = self._db.execute(
                f"SELECT count(*), min(label_seq) FROM ({newest})", (first, last, limit)
            ).fetchone()
            oldest_first = f"SELECT {_COLUMNS} FROM samples WHERE {role} AND label_seq BETWEEN ? AND ?"
            first = first if start is None else start
            return self._read(f"{oldest_first} ORDER BY label_seq", (first, last), count)

    def _read(self, sql: str, parameters: tuple[Any, ...], at_most: int) -> Window:
        """Fill preallocated arrays chunk by chunk, so that no second copy of a window is ever held."""
        width, targets = self._schema.width, self._schema.targets
        offsets, seq = np.empty(at_most, np.int64), np.empty(at_most, np.int64)
        x = np.empty((at_most, width), np.float32)
        y = x if self._schema.labels_itself else np.empty((at_most, targets), np.float32)
        cursor, done = self._db.execute(sql, parameters), 0
        while chunk := cursor.fetchmany(_CHUNK):
            chunk = self._whole(chunk)
            if not chunk:
                continue
            part = slice(done, done + len(chunk))
            part_offsets, part_seq, _, _, _, part_x, part_y, _ = zip(*chunk, strict=True)
            offsets[part], seq[part] = part_offsets, part_seq
            x[part] = self._inputs(part_x)
            if y is not x:
                y[part] = self._targets(part_y)
            done += len(chunk)
        found = Window(offsets[:done], seq[:done], x[:done], y[:done])
        return found if self._schema.open is None else self._counted(found)

    def _counted(self, found: Window) -> Window:
        """The rows with their labels as they count now, without those of removed classes."""
        y = counted([one.becomes for one in side_tables.read_classes(self._db)], found.y)
        return replace(found, y=y).take(y[:, 0] >= 0)

    def _whole(self, rows: list[Any]) -> list[Any]:
        """Those of some rows that are what was written."""
        whole = [row for row in rows if is_whole(row[2:], 4 * self._schema.measured)]
        if len(whole) < len(rows):
            log.warning("samples_damaged", rows=len(rows) - len(whole), action="not used")
        return whole

    def _inputs(self, blobs: Sequence[bytes]) -> NDArray[np.float32]:
        """What the model takes, `(n, width)`; also of samples that were stored with other context."""
        width = self._schema.width
        if all(len(blob) == 4 * width for blob in blobs):
            return self._floats(blobs, width)
        return np.concatenate([pad(np.frombuffer(blob, "<f4")[None], width) for blob in blobs])

    def newest_by_key(self, limit: int) -> tuple[list[str], NDArray[np.float32]]:
        """The newest of the last `limit` samples for each key, oldest key first, and `(keys, width)` inputs.

        Only those that were stored with all their context.
        """
        newest = f"""SELECT {CHECKED}, max(ts) FROM (SELECT * FROM samples ORDER BY offset DESC LIMIT ?)
            GROUP BY key ORDER BY max(ts)"""
        size = 4 * self._schema.width
        with self._reading():
            rows = [row[:-1] for row in self._db.execute(newest, (limit,)).fetchall()]
        rows = [row for row in rows if is_whole(row, size) and len(row[3]) == size]
        keys, blobs = [row[0] for row in rows], [row[3] for row in rows]
        return keys, self._floats(blobs, self._schema.width)

    def _floats(self, blobs: Iterable[bytes], width: int) -> NDArray[np.float32]:
        values = np.frombuffer(b"".join(blobs), "<f4")
        if len(values) % width:
            raise CorruptError(f"a stored vector does not have {width} values", where=str(self._path))
        return values.astype(np.float32).reshape(-1, width)

    def _targets(self, values: tuple[Any, ...]) -> NDArray[np.float32]:
        if self._schema.targets == 1:
            return np.asarray(values, np.float32).reshape(-1, 1)
        return self._floats(values, self._schema.targets)


def _upto(seq: int | None, back: int = 0) -> int:
    return _NO_LIMIT if seq is None else seq - back


def _spread(n: int, limit: int) -> NDArray[np.int64]:
    """Positions in `range(n)`, one drawn from each of `limit` equal stretches; all when `n <= limit`."""
    if n <= limit:
        return np.arange(n)
    edges = np.arange(limit + 1) * n // limit
    stretches = np.diff(edges)
    return edges[:-1] + (SeededRng(0).uniform(limit) * stretches).astype(np.int64)
