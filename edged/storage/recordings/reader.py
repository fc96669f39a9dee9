"""Opening a recorded stream in any format, and reading it as a whole."""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edged.errors import ConfigError
from edged.storage.recordings.frame import Frame
from edged.storage.recordings.home_assistant import RecorderSource
from edged.storage.recordings.npz import NpzSource, read_npz
from edged.storage.recordings.rows import (
    Recording,
    RowBlock,
    Source,
    Wanted,
    check_rows,
    classes_of,
    find_roles,
    number,
    row_blocks,
    text,
)
from edged.storage.recordings.sources import CsvSource, JsonLinesSource, LineProtocolSource, ParquetSource

FORMATS = {
    "npz": (".npz",),
    "csv": (".csv",),
    "parquet": (".parquet", ".pq"),
    "jsonl": (".jsonl", ".ndjson"),
    "influx": (".lp", ".line", ".influx"),
    "homeassistant": (".db", ".sqlite", ".sqlite3"),
}
"""Names of formats, and how their files' names end, before `.gz` for those of text."""

_OPEN: dict[str, Callable[[Path], AbstractContextManager[Source]]] = {
    "npz": lambda path: nullcontext(NpzSource(path)),
    "csv": CsvSource.open,
    "parquet": ParquetSource.open,
    "jsonl": JsonLinesSource.open,
    "influx": LineProtocolSource.open,
    "homeassistant": RecorderSource.open,
}
_DAMAGED = (zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError)


def format_of(path: Path | Frame) -> str:
    """The format that a file's name tells, `frame` for columns in memory; ConfigError for none."""
    if isinstance(path, Frame):
        return "frame"
    name = path.name.lower().removesuffix(".gz")
    for known, endings in FORMATS.items():
        if name.endswith(endings):
            return known
    raise ConfigError(
        "is not a kind of file that holds a stream",
        remedy="give an .npz, .csv, .parquet, .jsonl, .lp (line protocol) or .db (Home Assistant) file",
    )


def open_source(path: Path | Frame, known: str) -> AbstractContextManager[Source]:
    """Open a file in one of the `FORMATS`, or columns in memory.

    Raises ConfigError when it is not in this format; UnavailableError without the package that reads it.
    """
    return nullcontext(path) if isinstance(path, Frame) else _OPEN[known](path)


@contextmanager
def readable(path: Path | Frame) -> Iterator[None]:
    """Name the file in whatever goes wrong while it is read, and the place in it that an error names."""
    try:
        yield
    except ConfigError as problem:
        where = f"{path}: {problem.where}" if problem.where else str(path)
        raise ConfigError(problem.what, where=where, remedy=problem.remedy) from problem.__cause__
    except FileNotFoundError as problem:
        raise ConfigError("no such file", where=str(path), remedy="name an existing file") from problem
    except _DAMAGED as problem:
        raise ConfigError(
            f"the file is damaged or cut off: {problem}", where=str(path), remedy="fetch or write it again"
        ) from problem
    except OSError as problem:
        raise ConfigError(f"cannot be read: {problem.strerror or problem}", where=str(path)) from problem
    except UnicodeError as problem:
        raise ConfigError("is not UTF-8 text", where=str(path), remedy="save it as UTF-8") from problem


# ---- the whole stream ----------------------------------------------------------------------------


def read_stream(
    path: Path | Frame, *, features: Sequence[str] = (), label: str | None = None, key: str = "key"
) -> Recording:
    """Read a recorded stream from its file or from columns in memory; docs/import.md describes the formats.

    An `X` of an npz with more than two dimensions (windows of several channels) is flattened to one row of
    features a sample, last dimension fastest. Without column names `names` is empty.

    In a file of rows the last column named y, label or target is the label, else the only one of text; t,
    time or timestamp is the time (Unix seconds or milliseconds, or ISO 8601, UTC where it has no zone); key
    is the key; all others are features.
    Names are compared without regard to case. With `features` just these columns are read, in this
    order, and whatever else the file holds is passed over; `label` names the label's column. An empty
    cell of a feature or label is NaN: a reading, or a label, that never came. `key` names the array or column
    that holds the keys.

    Raises ConfigError when the file cannot be read or is no such stream, naming the place and what would be
    right; UnavailableError without the package that reads its format.
    """
    with readable(path):
        known = format_of(path)
        if known == "npz" and isinstance(path, Path):
            return read_npz(path, key)
        with open_source(path, known) as source:
            return _read_rows(source, Wanted(tuple((name,) for name in features), label, key))


def _read_rows(source: Source, wanted: Wanted) -> Recording:
    roles = find_roles(source, wanted)
    blocks = list(row_blocks(source, roles))
    check_rows(sum(map(len, blocks)))
    label, times, keys = (name in roles.others for name in ("label", "time", "key"))
    y, classes = _labels(source.unit, blocks, roles.others["label"]) if label else (None, ())
    return Recording(
        np.concatenate([block.x for block in blocks]),
        y,
        np.array([at for block in blocks for at in block.times], np.float64) if times else None,
        [key for block in blocks for key in block.keys] if keys else None,
        roles.features,
        classes,
        source.names,
    )


def _labels(unit: str, blocks: Sequence[RowBlock], name: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    cells: list[Any] = [cell for block in blocks for cell in block.labels]
    numbers = [number(cell) if text(cell) else math.nan for cell in cells]
    known = [found for found in numbers if found is not None]
    if all(math.isnan(found) for found in known):
        return classes_of([text(cell) for cell in cells])
    if len(known) < len(numbers):
        # Neither guess is safe: a slip in one number would make every number a class name.
        place = numbers.index(None)
        rows = [row for block in blocks for row in block.numbers]
        raise ConfigError(
            f"label {text(cells[place])[:40]!r} is not a number, others are",
            where=f"{unit} {rows[place]}, column {name}",
            remedy="make all labels numbers, or all of them names",
        )
    return np.array(known, np.float64), ()
