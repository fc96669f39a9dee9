"""Recorded streams: what `edged evaluate` and `edged demo` replay.

A stream is an `.npz` with `X`, `y` and optionally `t`, `key` and `names`, or a `.csv` or `.csv.gz`
with a header. The order in the file is the order of the stream.
"""

from __future__ import annotations

import csv
import gzip
import math
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from edged.domain.nearest import did_you_mean
from edged.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LABEL_COLUMNS = frozenset({"y", "label", "target"})
TIME_COLUMNS = frozenset({"t", "time", "timestamp"})
KEY_COLUMN = "key"

ZIP_MAGIC = b"PK\x03\x04"

_ARRAYS = frozenset({"X", "y", "t", "key", "names"})
_HOW_TO_SAVE = "write it with numpy.savez(path, X=features, y=labels)"
_DAMAGED = (zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError)


@dataclass(frozen=True)
class Recording:
    """A recorded stream of `n` samples, in stream order.

    `x` `(n, d)` float32, contiguous, in the file's own units; NaN and infinity are kept, for the
    loop to refuse. `y` `(n,)` or `(n, k)` float64, class indices where the labels were text, None
    without labels. `t` `(n,)` float64 Unix seconds, finite, or None. `key` one text a sample or
    None. `names` the `d` feature names, empty where the file has none. `classes` the text labels in
    sorted order, empty where labels are numbers: `classes[int(y[i])]` is the label of sample i.
    `columns` are all names in the file, also of what was passed over; of an npz its arrays.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float64] | None = None
    t: NDArray[np.float64] | None = None
    key: list[str] | None = None
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def finite(self) -> Recording:
        """Return the rows that can be samples: a reading with a NaN never becomes one."""
        keep = np.asarray(np.isfinite(self.x).all(axis=1))
        if keep.all():
            return self
        return replace(
            self,
            x=self.x[keep],
            y=None if self.y is None else self.y[keep],
            t=None if self.t is None else self.t[keep],
            key=None if self.key is None else [k for k, kept in zip(self.key, keep, strict=True) if kept],
        )

    def left_out(self) -> str | None:
        """Return how many rows can be no samples, and why; None when all can."""
        empty = np.isnan(self.x).any(axis=1)
        large = np.isinf(self.x).any(axis=1) & ~empty
        rows = np.flatnonzero(empty | large)
        if not len(rows):
            return None
        reasons = {"an empty cell or NaN": empty.sum(), "a number beyond float32": large.sum()}
        told = ", ".join(f"{count:,} with {reason}" for reason, count in reasons.items() if count)
        return f"{len(rows):,} of {len(self):,} rows are left out: {told}; the first is row {rows[0]}"


def read_stream(
    path: Path, *, features: Sequence[str] = (), label: str | None = None, key: str = "key"
) -> Recording:
    """Read a recorded stream from its file.

    An `X` with more than two dimensions (windows of several channels) is flattened to one row of
    features a sample, last dimension fastest. Without column names `names` is empty.

    In a csv the last column named y, label or target is the label, else the only one of text; t, time or
    timestamp is the time (Unix seconds or ISO 8601, UTC where it has no zone); key is the key; all others are
    features.
    Names are compared without regard to case. With `features` just these columns are read, in this
    order, and whatever else the file holds is passed over; `label` names the label's column. An empty
    cell of a feature or label is NaN: a reading, or a label, that never came. `key` names the array of an npz
    file that holds the keys.

    Raises ConfigError when the file cannot be read or is no such stream, naming the place and what would be
    right.
    """
    name = path.name.lower()
    with _readable(path):
        if name.endswith(".npz"):
            return _read_npz(path, key)
        if name.endswith((".csv", ".csv.gz")):
            return _read_csv(path, tuple(features), label)
        raise ConfigError(
            "is not a kind of file that holds a stream", remedy="give an .npz, .csv or .csv.gz file"
        )


@contextmanager
def _readable(path: Path) -> Iterator[None]:
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
    except UnicodeDecodeError as problem:
        raise ConfigError("is not UTF-8 text", where=str(path), remedy="save it as UTF-8") from problem


def _check_rows(n: int) -> None:
    if n == 0:
        raise ConfigError("holds no samples", remedy="a stream needs at least one row")


# ---- npz -----------------------------------------------------------------------------------------


def _read_npz(path: Path, key_name: str) -> Recording:
    arrays = _load_arrays(path, key_name)
    x = _features(arrays["X"])
    for name in ("y", "t", key_name):
        _check_length(name, arrays.get(name), len(x))
    y, classes = _labels(arrays.get("y"))
    key = arrays.get(key_name)
    return Recording(
        x,
        y,
        _times(arrays.get("t")),
        None if key is None else [_text(value) for value in key.tolist()],
        _feature_names(arrays.get("names"), x.shape[1]),
        classes,
        tuple(arrays),
    )


def _load_arrays(path: Path, key: str) -> dict[str, NDArray[Any]]:
    """The arrays of a stream, others unread; `X` is among them."""
    with path.open("rb") as file:
        if file.read(len(ZIP_MAGIC)) != ZIP_MAGIC:
            raise ConfigError("is no npz file", remedy=_HOW_TO_SAVE)
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            if "X" not in archive.files:
                has = ", ".join(sorted(archive.files)) or "nothing"
                raise ConfigError(f"has no array X, only {has}", remedy=_HOW_TO_SAVE)
            return {name: _load_array(archive, name) for name in archive.files if name in (*_ARRAYS, key)}


def _load_array(archive: Any, name: str) -> NDArray[Any]:
    try:
        return np.asarray(archive[name])
    except (ValueError, RuntimeError, MemoryError) as problem:
        # Object arrays are pickles, which could run code; an absurd shape is a damaged header.
        line = str(problem).partition("\n")[0]
        raise ConfigError(
            f"array {name} cannot be loaded: {line}",
            remedy="save it as a plain array of numbers",
        ) from problem


def _features(x: NDArray[Any]) -> NDArray[np.float32]:
    if x.dtype.kind not in "biuf":
        raise ConfigError(f"X holds {x.dtype}, not numbers", remedy="convert X to float32")
    if x.ndim == 0:
        raise ConfigError("X is a single number", remedy="give it the shape (samples, features)")
    _check_rows(len(x))
    if x.size == 0:
        raise ConfigError("X has no features", remedy="give it the shape (samples, features)")
    with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite, as in a message
        return np.ascontiguousarray(x.reshape(len(x), -1), np.float32)


def _check_length(name: str, values: NDArray[Any] | None, n: int) -> None:
    if values is not None and (values.ndim == 0 or len(values) != n):
        length = "is a single value" if values.ndim == 0 else f"has {len(values)} rows"
        raise ConfigError(f"{name} {length}, X has {n}", remedy="both need one row a sample")
    if name != "y" and values is not None and values.ndim != 1:
        raise ConfigError(f"{name} has the shape {values.shape}", remedy=f"give {name} the shape ({n},)")


def _labels(y: NDArray[Any] | None) -> tuple[NDArray[np.float64] | None, tuple[str, ...]]:
    if y is None:
        return None, ()
    flat = y.reshape(len(y), -1)
    single = flat.shape[1] == 1
    if y.dtype.kind in "US" and single:
        return _classes([_text(value) for value in flat[:, 0].tolist()])
    if y.dtype.kind not in "biuf" or flat.shape[1] == 0:
        raise ConfigError(
            f"y holds {y.dtype} of shape {y.shape}", remedy="labels are numbers, or one text a sample"
        )
    return (flat[:, 0] if single else flat).astype(np.float64), ()


def _classes(labels: Sequence[str]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    classes = tuple(sorted(set(labels) - {""}))
    index = {name: float(i) for i, name in enumerate(classes)} | {"": float("nan")}
    return np.array([index[label] for label in labels], np.float64), classes


def _times(t: NDArray[Any] | None) -> NDArray[np.float64] | None:
    if t is None:
        return None
    if t.dtype.kind == "M":
        seconds = (t - np.datetime64(0, "s")) / np.timedelta64(1, "s")
    elif t.dtype.kind in "iuf":
        seconds = t.astype(np.float64)
    else:
        raise ConfigError(f"t holds {t.dtype}, not times", remedy="give Unix seconds")
    bad = np.flatnonzero(~np.isfinite(seconds))
    if len(bad):
        raise ConfigError("is not a time", where=f"t[{bad[0]}]", remedy="give Unix seconds")
    return np.asarray(seconds, np.float64)


def _feature_names(names: NDArray[Any] | None, width: int) -> tuple[str, ...]:
    if names is None:
        return ()
    if names.dtype.kind not in "US" or names.shape != (width,):
        raise ConfigError(
            f"names does not name {width} features", remedy="one text a column of X, or leave it out"
        )
    return tuple(_text(name) for name in names.tolist())


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


# ---- csv -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """Which column of a csv is what; positions in a row."""

    header: tuple[str, ...]
    features: tuple[int, ...]
    label: int | None
    time: int | None
    key: int | None


@dataclass
class _Columns:
    """The columns read so far: numbers at once, so that no row stays as text."""

    values: array[float] = field(default_factory=lambda: array("d"))
    labels: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


def _read_csv(path: Path, features: tuple[str, ...], label: str | None) -> Recording:
    with _open_text(path) as file:
        reader = csv.reader(file, strict=True)
        try:
            header, first = next(reader, []), next(reader, [])
            layout = _layout(header, first, features, label)
            columns = _read_rows(reader, chain([first], reader), layout)
        except csv.Error as problem:
            raise ConfigError(str(problem), where=f"line {reader.line_num}") from problem
    n = len(columns.lines)
    _check_rows(n)
    with np.errstate(over="ignore"):
        x = np.frombuffer(columns.values).reshape(n, -1).astype(np.float32)
    y, classes = (None, ()) if layout.label is None else _csv_labels(columns, layout.header[layout.label])
    t = None if layout.time is None else np.array(columns.times, np.float64)
    key = None if layout.key is None else columns.keys
    return Recording(x, y, t, key, tuple(layout.header[i] for i in layout.features), classes, layout.header)


def _open_text(path: Path) -> TextIO:
    # A byte order mark is no part of the first column's name.
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _layout(row: list[str], first: list[str], wanted: tuple[str, ...], label_name: str | None) -> _Layout:
    header = tuple(name.strip() for name in row)
    _check_header(header)
    lower = [name.lower() for name in header]
    named = label_name is not None and label_name.lower() in lower
    label = _last(lower, frozenset({str(label_name).lower()}) if named else LABEL_COLUMNS)
    time = _last(lower, TIME_COLUMNS)
    key = _last(lower, frozenset({KEY_COLUMN}))
    features = tuple(i for i in range(len(header)) if i not in (label, time, key))
    texts = [i for i in features if i < len(first) and first[i].strip() and _number(first[i]) is None]
    if label is None and len(texts) == 1 and not wanted:
        label = texts[0]
        features = tuple(i for i in features if i != label)
    if wanted:
        features = tuple(_column(header, name) for name in wanted)
    if not features:
        raise ConfigError("has no feature column", where="line 1", remedy="separate columns by commas")
    return _Layout(header, features, label, time, key)


def _column(header: tuple[str, ...], name: str) -> int:
    if name not in header:
        raise ConfigError(
            f"there is no column {name!r}",
            where="line 1",
            remedy=did_you_mean(name, header)
            or f"columns are separated by commas; found: {', '.join(header)[:200]}",
        )
    return header.index(name)


def _check_header(header: tuple[str, ...]) -> None:
    other = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), None)
    if other is not None:
        raise ConfigError(
            f"columns are separated by {other!r}", where="line 1", remedy="separate them by commas"
        )
    if all(_number(name) is not None for name in header):
        raise ConfigError("is no header", where="line 1", remedy="name the columns in the first line")
    if "" in header:
        # Most often the row numbers that some writers put first: never a feature.
        raise ConfigError(
            f"column {header.index('') + 1} has no name", where="line 1", remedy="name or remove it"
        )
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise ConfigError(f"names {twice[0]!r} twice", where="line 1", remedy="give each column its own name")


def _last(names: Sequence[str], wanted: frozenset[str]) -> int | None:
    return max((i for i, name in enumerate(names) if name in wanted), default=None)


def _read_rows(reader: Any, rows: Iterable[list[str]], layout: _Layout) -> _Columns:
    columns = _Columns()
    width, features = len(layout.header), layout.features
    for row in rows:
        if len(row) != width:
            if not row:
                continue  # an empty line, usually the last one
            where = f"line {reader.line_num}"
            raise ConfigError(f"has {len(row)} values, the header names {width}", where=where)
        try:
            columns.values.extend([float(row[i]) for i in features])
        except ValueError:
            columns.values.extend(_with_gaps(reader.line_num, row, layout))
        columns.lines.append(reader.line_num)
        if layout.label is not None:
            columns.labels.append(row[layout.label].strip())
        if layout.time is not None:
            columns.times.append(_time(reader.line_num, layout.header[layout.time], row[layout.time]))
        if layout.key is not None:
            columns.keys.append(row[layout.key].strip())
    return columns


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _with_gaps(line: int, row: list[str], layout: _Layout) -> list[float]:
    """The features of a row in which something is no number: empty cells are NaN."""
    values = []
    for i in layout.features:
        value = _number(row[i]) if row[i].strip() else float("nan")
        if value is None:
            raise _bad_cell(line, layout.header[i], row[i], "a number")
        values.append(value)
    return values


def _bad_cell(line: int, column: str, text: str, wanted: str) -> ConfigError:
    what = f"{text.strip()[:40]!r} is not {wanted}" if text.strip() else f"is empty instead of {wanted}"
    return ConfigError(what, where=f"line {line}, column {column}", remedy="correct or remove that row")


def _time(line: int, column: str, text: str) -> float:
    seconds = _number(text)
    if seconds is None:
        seconds = _iso_seconds(text.strip())
    if seconds is None or not np.isfinite(seconds):
        raise _bad_cell(line, column, text, "a time in Unix seconds or ISO 8601")
    return seconds


def _iso_seconds(text: str) -> float | None:
    try:
        # CPython 3.10 does not know the Z.
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _csv_labels(columns: _Columns, name: str) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    numbers = [_number(text) if text else float("nan") for text in columns.labels]
    known = [number for number in numbers if number is not None]
    if all(math.isnan(number) for number in known):
        return _classes(columns.labels)
    if len(known) < len(numbers):
        # Neither guess is safe: a slip in one number would make every number a class name.
        row = numbers.index(None)
        raise ConfigError(
            f"label {columns.labels[row][:40]!r} is not a number, others are",
            where=f"line {columns.lines[row]}, column {name}",
            remedy="make all labels numbers, or all of them names",
        )
    return np.array(known, np.float64), ()
