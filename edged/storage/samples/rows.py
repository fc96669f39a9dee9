"""Rows of the sample log: from columns of samples, as fast as SQLite takes them, and checked when read."""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from edged.domain.stream.sample import Batch, LabelValue
from edged.domain.stream.schema import Schema
from edged.errors import StorageError
from edged.storage.files.checked_table import checksum

WITHDRAWN = 2**63 - 1  # in column `changes`: whatever labels come, the sample is not learned from
STRETCH_BITS = 13  # see labels.py
CHECKED = "key, ts, holdout, x, y, checksum"
"""Columns that `is_whole` takes."""
_ROWS_PER_INSERT = 50  # one statement for many rows takes a third off the time of an insert


def is_whole(row: Sequence[Any], size: int) -> bool:
    """Check that a row, given as key, ts, holdout, x, y and checksum, is what was written.

    The features of a sample have `size` bytes; what is behind them is context, several times as many.
    """
    *values, expected = row
    return expected == checksum(*values) and len(values[3]) >= size and len(values[3]) % size == 0


def checksum_with(y: str) -> str:
    """Return SQL of the checksum that a row has with another label, an expression; see `provide_checksum`."""
    return f"row_checksum(key, ts, holdout, x, {y})"


def provide_checksum(db: sqlite3.Connection) -> None:
    """Let statements on this connection use `checksum_with`."""
    db.create_function("row_checksum", 5, checksum)


def id_key(offset: int, sample_id: str) -> int:
    """Return what the index holds for a sample id at an offset."""
    return (offset >> STRETCH_BITS) << 32 | crc32(sample_id.encode())


def insert(
    db: sqlite3.Connection,
    batch: Batch,
    *,
    holdout: NDArray[np.bool_],
    labels: Iterable[Any],
    positions: Iterable[int | None],
    sources: Mapping[str, int],
) -> None:
    """Insert a batch into the current transaction.

    `labels` are encoded values of column `y`, `positions` those of `label_seq`; both may be endless.
    `sources` are the numbers of the sources of labels.
    """
    offsets, ts, kept = batch.offsets.tolist(), batch.ts.tolist(), holdout.astype(int).tolist()
    blobs, labels = _blobs(batch.x), list(islice(labels, len(batch)))
    columns: dict[str, Iterable[Any]] = {
        "offset": offsets,
        "key": batch.keys,
        "ts": ts,
        "ingested": batch.ingested.tolist(),
        "x": blobs,
        "y": labels,
        "label_seq": positions,
        "holdout": kept,
        "packet": packed(batch.packets),
        "checksum": map(checksum, batch.keys, ts, kept, blobs, labels),
    }
    if batch.aside:
        columns["changes"] = [WITHDRAWN if aside else None for aside in batch.is_aside().tolist()]
    if sources:
        columns["source"] = [sources.get(source) for source in batch.sources]
    if any(batch.ids):
        columns |= {"id_key": _id_keys(offsets, batch.ids), "id": batch.ids}
    _insert_columns(db, columns, len(batch))


def check_rows(batch: Batch, next_offset: int, width: int, path: Path) -> None:
    """StorageError when offsets do not rise from `next_offset` on, or inputs have another width."""
    rising = np.diff(batch.offsets, prepend=next_offset - 1) > 0
    if not rising.all():
        raise StorageError(
            f"offset {batch.offsets[~rising][0]} was given before or is out of order: "
            f"the next one is {next_offset}",
            where=str(path),
        )
    if batch.x.shape != (len(batch), width):
        raise StorageError(
            f"inputs of shape {batch.x.shape} do not fit {len(batch)} samples of {width} features",
            where=str(path),
        )


def _insert_columns(db: sqlite3.Connection, columns: dict[str, Iterable[Any]], n: int) -> None:
    """Insert `n` rows given as columns, many with each statement."""
    values = list(chain.from_iterable(zip(*columns.values(), strict=False)))
    names = tuple(columns)
    whole = n - n % _ROWS_PER_INSERT
    for rows, start, stop in ((_ROWS_PER_INSERT, 0, whole), (1, whole, n)):
        step = rows * len(names)
        parts = range(start * len(names), stop * len(names), step)
        db.executemany(_insert_statement(names, rows), (values[i : i + step] for i in parts))


@lru_cache(maxsize=8)
def _insert_statement(names: tuple[str, ...], rows: int) -> str:
    row = "(" + ", ".join("?" * len(names)) + ")"
    return f"INSERT INTO samples ({', '.join(names)}) VALUES " + ", ".join([row] * rows)


def _blobs(x: NDArray[np.float32]) -> list[bytes]:
    raw, size = np.ascontiguousarray(x, "<f4").tobytes(), 4 * x.shape[1]
    return [raw[start : start + size] for start in range(0, len(raw), size)]


def labelled_rows(batch: Batch, schema: Schema) -> NDArray[np.bool_]:
    """Which samples of a batch have a label on arrival that counts, `(n,)`."""
    counts = ~batch.is_aside()
    if schema.labels_itself:
        return counts
    counts &= np.fromiter((label is not None for label in batch.labels), bool, len(batch))
    return counts


def encoded(labels: Sequence[LabelValue | None], schema: Schema) -> Iterable[Any]:
    """Column `y`; endless where the target is the input itself."""
    if schema.labels_itself:
        return repeat(None)
    if schema.targets == 1:
        return labels
    return [None if label is None else np.asarray(label, "<f4").tobytes() for label in labels]


def positions(labelled: NDArray[np.bool_], first: int) -> Iterable[int | None]:
    """Positions in label order, None for rows without a label."""
    if labelled.all():
        return range(first, first + len(labelled))
    if not labelled.any():
        return repeat(None)
    seqs = first - 1 + np.cumsum(labelled)
    return [seq if has else None for seq, has in zip(seqs.tolist(), labelled.tolist(), strict=True)]


def _id_keys(offsets: list[int], ids: list[str | None]) -> list[int | None]:
    return [None if name is None else id_key(offset, name) for offset, name in zip(offsets, ids, strict=True)]


def packed(packets: Sequence[tuple[int, int] | None]) -> Iterable[int | None]:
    """Column `packet`: checksum and MQTT packet id in one integer."""
    if not packets:
        return repeat(None)
    return [None if packet is None else packet[1] << 16 | packet[0] for packet in packets]
