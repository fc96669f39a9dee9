"""Samples of a log as columns. What they mean stands in the log itself, so no configuration is needed."""

# ruff: noqa: S608  every statement is put together from constants of this module alone

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.domain.stream.open_classes import counted
from edged.storage.files import database
from edged.storage.samples import side_tables
from edged.storage.samples.rows import CHECKED, is_whole
from edged.storage.samples.tables import FORMAT, SampleCounts

_LEFT = "LEFT JOIN label_sources ON label_sources.number = samples.source"
_COLUMNS = f"offset, label_seq, {CHECKED}, ingested, name"


@dataclass(frozen=True)
class SampleTable:
    """Stored samples in order of arrival, one row each.

    Attributes
    ----------
    offsets
        Position in the sample log, `(n,)` int64.
    keys
        Key of each sample.
    ts, ingested
        Time of the sample and of its arrival, `(n,)` float64, Unix seconds.
    x
        Features in the units of the messages, `(n, d)` float32; of a window row by row.
    y
        Labels, `(n, targets)` float32: class indices, or target values. NaN without a label, and always
        where the target is the input.
    holdout
        Whether the sample is kept for judging models, `(n,)` bool.
    sources
        Where the label came from; None where that is not recorded.
    names
        Feature names; empty where the stream has only their number.
    classes
        Class names by index; empty for other tasks.
    damaged
        Rows that were left out because their checksum is wrong.
    """

    offsets: NDArray[np.int64]
    keys: tuple[str, ...]
    ts: NDArray[np.float64]
    ingested: NDArray[np.float64]
    x: NDArray[np.float32]
    y: NDArray[np.float32]
    holdout: NDArray[np.bool_]
    sources: tuple[str | None, ...]
    names: tuple[str, ...]
    classes: tuple[str, ...]
    damaged: int = 0

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def labels(self) -> list[Any]:
        """Return the label of each sample: a class name, a number or a tuple of numbers; None without one."""
        labels: list[Any] = []
        for row in self.y.tolist():
            if any(value != value for value in row):  # noqa: PLR0124  NaN: no label
                labels.append(None)
            elif self.classes:
                labels.append(self.classes[int(row[0])])
            else:
                labels.append(row[0] if len(row) == 1 else tuple(row))
        return labels

    def columns(self) -> dict[str, Any]:
        """Return the columns by name, as `pandas.DataFrame` and `pyarrow.table` take them.

        A feature without a name is called `x0`, `x1` and so on.
        """
        names = (
            self.names if len(self.names) == self.x.shape[1] else [f"x{i}" for i in range(self.x.shape[1])]
        )
        return {
            "offset": self.offsets, "key": list(self.keys), "ts": self.ts,
            **dict(zip(names, self.x.T, strict=True)), "label": self.labels, "holdout": self.holdout,
        }  # fmt: skip


class SampleTableReader:
    """A sample log, opened to be read as a table, also while a daemon writes it. Made by `open`."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db, self._path = db, path

    @classmethod
    def open(cls, path: Path) -> SampleTableReader:
        """Open the file; StorageError when it is missing or of another edged, CorruptError when damaged."""
        return cls(database.connect(path, number=FORMAT, readonly=True), path)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def counts(self) -> SampleCounts:
        """Read all counts, at one moment."""
        with database.snapshot(self._db, self._path):
            return SampleCounts.read(self._db)

    def read(self, *, limit: int | None, after: int, key: str | None, labelled: bool) -> SampleTable:
        """Read the newest `limit` samples with larger offsets than `after`; see `State.samples`."""
        which = "offset > ?" + " AND key = ?" * (key is not None) + " AND label_seq IS NOT NULL" * labelled
        with database.snapshot(self._db, self._path):
            meaning = dict(self._db.execute("SELECT name, value FROM stream"))
            classes = side_tables.read_classes(self._db)
            rows = self._db.execute(
                f"SELECT {_COLUMNS} FROM samples {_LEFT} WHERE {which} ORDER BY offset DESC LIMIT ?",
                (after, *(() if key is None else (key,)), -1 if limit is None else limit),
            ).fetchall()[::-1]
        width, targets = int(meaning.get("width", 1)), int(meaning.get("targets", 1))
        whole = [row for row in rows if is_whole(row[2:8], 4 * width)]
        y = _labels(whole, targets)
        if classes:
            y = counted([one.becomes for one in classes], np.nan_to_num(y, nan=-1.0))
            y[y < 0] = np.nan
        x = [np.frombuffer(row[5], "<f4", width) for row in whole]
        return SampleTable(
            np.array([row[0] for row in whole], np.int64),
            tuple(row[2] for row in whole),
            np.array([row[3] for row in whole], np.float64),
            np.array([row[8] for row in whole], np.float64),
            np.array(x, np.float32).reshape(len(whole), width),
            y,
            np.array([row[4] for row in whole], np.bool_),
            tuple(row[9] for row in whole),
            _split(meaning.get("features", "")),
            tuple(one.name for one in classes) or _split(meaning.get("classes", "")),
            len(rows) - len(whole),
        )


def _split(names: str) -> tuple[str, ...]:
    return tuple(names.split("\n")) if names else ()


def _labels(rows: list[Any], targets: int) -> NDArray[np.float32]:
    """Labels `(n, targets)` as they are stored; NaN where there is none."""
    y = np.full((len(rows), targets), np.nan, np.float32)
    for at, row in enumerate(rows):
        if row[1] is not None and row[6] is not None:
            y[at] = np.frombuffer(row[6], "<f4") if isinstance(row[6], bytes) else row[6]
    return y
