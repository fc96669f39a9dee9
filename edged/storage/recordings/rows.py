"""Rows of a file: which of its columns are features, label, time, key and id, and what their cells say.

The same rules hold for every format that is written row by row.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from math import isfinite
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edged.errors import ConfigError, did_you_mean

LABEL_COLUMNS = ("y", "label", "target")
TIME_COLUMNS = ("t", "time", "timestamp")
KEY_COLUMN = "key"
ABSENT: Any = object()
"""The cell of a record that does not have the column."""

NO_VALUE = "an empty cell or NaN"
TOO_LARGE = "a number beyond float32"
_MISSING_WORDS = frozenset({"", "nan", "none", "null", "unavailable", "unknown"})
MILLISECONDS_FROM = 1e11
_ROWS = 8192
_REASONS = 8  # that are listed one by one


class Source(Protocol):
    """A file that is being read.

    `names` are its columns, `features` those that can be features where none are named, `first` the cells of
    the first row by name; `unit` is what errors count rows in, `content` what a row has to be.
    """

    names: tuple[str, ...]
    features: tuple[str, ...]
    first: dict[str, Any]
    unit: str
    content: str

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[Any] | None]]:
        """Each row's number in the file and its cells of `columns`; None where the row is malformed."""


@dataclass(frozen=True)
class Wanted:
    """What a stream asks of a file: columns by name; `features` in their order, each by one of its names."""

    features: tuple[tuple[str, ...], ...] = ()
    label: str | None = None
    key: str | None = None
    time: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class Roles:
    """The columns that are read: `features`, then those of `others`, by what they are."""

    features: tuple[str, ...]
    others: dict[str, str]

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them, in the order of the cells in a row."""
        return (*self.features, *self.others.values())

    def position(self, role: str) -> int | None:
        """Where the cell of label, time, key or id is in a row; None without such a column."""
        names = list(self.others)
        return len(self.features) + names.index(role) if role in self.others else None


@dataclass
class RowBlock:
    """Rows one after the other: numbers at once, so that no row stays as text.

    `values` are the features of all rows, `labels` cells as they were read, `times` Unix seconds, `ids` texts
    or None; each empty without such a column. `numbers` are the rows' numbers in the file.
    """

    roles: Roles
    values: array[float] = field(default_factory=lambda: array("d"))
    labels: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        position = self.roles.position
        self._label, self._key, self._id = position("label"), position("key"), position("id")

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, row: int, values: list[float], at: float | None, cells: Sequence[Any]) -> None:
        """Add a row with its features, its time and its cells."""
        self.numbers.append(row)
        self.values.extend(values)
        if at is not None:
            self.times.append(at)
        if self._label is not None:
            self.labels.append(cells[self._label])
        if self._key is not None:
            self.keys.append(text(cells[self._key]))
        if self._id is not None:
            self.ids.append(text(cells[self._id]) or None)

    @property
    def x(self) -> NDArray[np.float32]:
        """The features, `(n, d)` float32; NaN for an empty cell, infinite for what float32 cannot hold."""
        with np.errstate(over="ignore"):
            return np.frombuffer(self.values).reshape(len(self), -1).astype(np.float32)


@dataclass
class LeftOut:
    """Rows that can be no samples: how many by reason, the first of them, and of how many rows in all."""

    reasons: Counter[str] = field(default_factory=Counter)
    first: int | None = None
    total: int = 0

    def add(self, reason: str, row: int, count: int = 1) -> None:
        """Count rows; `row` is the first of them."""
        known = reason in self.reasons or len(self.reasons) < _REASONS
        self.reasons[reason if known else "other content"] += count
        self.first = row if self.first is None else min(self.first, row)

    def check(self, x: NDArray[np.float32], rows: Sequence[int]) -> NDArray[np.bool_]:
        """Count the rows of `x` `(n, d)` that are not finite; which ones are, `(n,)`."""
        finite = np.asarray(np.isfinite(x).all(axis=1))
        if not finite.all():
            empty = np.isnan(x).any(axis=1)
            for reason, bad in ((NO_VALUE, empty), (TOO_LARGE, ~finite & ~empty)):
                if bad.any():
                    self.add(reason, rows[int(np.argmax(bad))], int(bad.sum()))
        return finite

    def line(self, unit: str = "row", what: str = "rows") -> str | None:
        """One line on what was left out and why; None for nothing."""
        if self.first is None:
            return None
        reasons = ", ".join(f"{count:,} with {reason}" for reason, count in self.reasons.items())
        count = sum(self.reasons.values())
        return f"{count:,} of {self.total:,} {what} are left out: {reasons}; the first is {unit} {self.first}"


# ---- which column is what ------------------------------------------------------------------------


def find_roles(source: Source, wanted: Wanted) -> Roles:
    """Decide which column of a file is what; names are compared without regard to case, but for features.

    Raises ConfigError when a feature has no column, or there is none at all.
    """
    lower = [name.lower() for name in source.names]

    def column(given: str | None, usual: Sequence[str]) -> str | None:
        for names in ([] if given is None else [given.lower()], usual):
            found = [i for i, name in enumerate(lower) if name in names]
            if found:
                return source.names[found[-1]]
        return None

    others = {
        "label": column(wanted.label, LABEL_COLUMNS),
        "time": column(wanted.time, TIME_COLUMNS),
        "key": column(wanted.key, [KEY_COLUMN]),
        "id": column(wanted.id, []),
    }
    features = [name for name in source.features if name not in others.values()]
    texts = [name for name in features if _is_text(source.first.get(name))]
    if others["label"] is None and len(texts) == 1 and not wanted.features:
        others["label"] = texts[0]
        features.remove(texts[0])
    if wanted.features:
        features = [_feature(source, names) for names in wanted.features]
    if not features:
        raise ConfigError("has no feature column", where=f"{source.unit} 1", remedy="name the columns")
    return Roles(tuple(features), {role: name for role, name in others.items() if name is not None})


def _feature(source: Source, names: tuple[str, ...]) -> str:
    for name in names:
        if name in source.names:
            return name
    raise ConfigError(
        f"there is no column {names[0]!r}",
        where=f"{source.unit} 1",
        remedy=did_you_mean(names[0], source.names) or f"found: {', '.join(source.names)[:200]}",
    )


def _is_text(cell: Any) -> bool:
    return isinstance(cell, str) and number(cell) is None


# ---- what a cell says ----------------------------------------------------------------------------


def number(cell: Any) -> float | None:
    """The number in a cell, NaN for an empty one or a word for nothing; None where it is no number."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        nothing = cell is None or cell is ABSENT
        return float("nan") if nothing or str(cell).strip().lower() in _MISSING_WORDS else None


def seconds(cell: Any) -> float | None:
    """Unix seconds of a time in seconds, milliseconds (above 1e11) or ISO 8601 (UTC where it has no zone).

    None where it is none of them.
    """
    if isinstance(cell, datetime):
        return (cell if cell.tzinfo else cell.replace(tzinfo=timezone.utc)).timestamp()
    if isinstance(cell, bool):
        return None
    try:
        found = float(cell)
    except (TypeError, ValueError):
        return _iso_seconds(cell.strip()) if isinstance(cell, str) else None
    if not isfinite(found):
        return None
    return found / 1000 if found > MILLISECONDS_FROM else found


def _iso_seconds(text: str) -> float | None:
    try:
        # CPython 3.10 does not know the Z.
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        return None
    return seconds(moment)


def text(cell: Any) -> str:
    """A key, an id or the name of a class as it was written; empty for an empty cell."""
    return "" if cell is None or cell is ABSENT else str(cell).strip()


def bad_cell(where: str, column: str, cell: Any, wanted: str) -> ConfigError:
    """The error for a cell that is not what its column holds."""
    content = text(cell)
    what = f"{content[:40]!r} is not {wanted}" if content else f"is empty instead of {wanted}"
    return ConfigError(what, where=f"{where}, column {column}", remedy="correct or remove that row")


# ---- rows ----------------------------------------------------------------------------------------


def row_blocks(source: Source, roles: Roles, left_out: LeftOut | None = None) -> Iterator[RowBlock]:
    """Read all rows, in blocks.

    A row that is malformed, or has a text in place of a number or time, is counted in `left_out`. Without
    it that raises ConfigError with the place.
    """
    block, width, time = RowBlock(roles), len(roles.features), roles.position("time")
    for row, cells in source.rows(roles.columns):
        if left_out is not None:
            left_out.total += 1
        if cells is None:
            problem = ConfigError(f"is not {source.content}", where=f"{source.unit} {row}")
        else:
            try:
                values = _numbers(source, row, roles, cells[:width])
                at = None if time is None else _time(source, row, roles, cells[time])
            except ConfigError as found:
                problem = found
            else:
                block.add(row, values, at, cells)
                if len(block) >= _ROWS:
                    yield block
                    block = RowBlock(roles)
                continue
        if left_out is None:
            raise problem
        place = problem.where.partition(", ")[2]
        left_out.add(f"a cell in {place} that cannot be read" if place else "malformed content", row)
    if block:
        yield block


def _numbers(source: Source, row: int, roles: Roles, cells: Sequence[Any]) -> list[float]:
    try:
        return list(map(float, cells))
    except (TypeError, ValueError):
        values = []
        for name, cell in zip(roles.features, cells, strict=True):
            value = number(cell)
            if value is None:
                raise bad_cell(f"{source.unit} {row}", name, cell, "a number") from None
            values.append(value)
        return values


def _time(source: Source, row: int, roles: Roles, cell: Any) -> float:
    found = seconds(cell)
    if found is None:
        raise bad_cell(
            f"{source.unit} {row}", roles.others["time"], cell, "a time in Unix seconds or ISO 8601"
        )
    return found


# ---- a recording in memory -----------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """A recorded stream of `n` samples, in stream order.

    `x` `(n, d)` float32, contiguous, in the file's own units; NaN and infinity are kept, for the
    loop to refuse. `y` `(n,)` or `(n, k)` float64, class indices where the labels were text, None
    without labels. `t` `(n,)` float64 Unix seconds, finite, or None. `key` one text a sample or
    None. `names` the `d` feature names, empty where the file has none. `classes` the text labels in
    sorted order, empty where labels are numbers: `classes[int(y[i])]` is the label of sample i.
    `columns` are all names in the file, also of what was passed over; of an npz its arrays.
    `omitted` says which rows of the file are not even here, and why.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float64] | None = None
    t: NDArray[np.float64] | None = None
    key: list[str] | None = None
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    omitted: str = ""

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
        counted = LeftOut(total=len(self))
        counted.check(self.x, range(len(self)))
        return "; ".join(filter(None, (self.omitted, counted.line()))) or None


def check_rows(n: int) -> None:
    """Raise ConfigError for a file without rows."""
    if n == 0:
        raise ConfigError("holds no samples", remedy="a stream needs at least one row")


def classes_of(labels: Sequence[str]) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Positions `(n,)` of text labels among the sorted classes, NaN for an empty one, and the classes."""
    classes = tuple(sorted(set(labels) - {""}))
    index = {name: float(i) for i, name in enumerate(classes)} | {"": float("nan")}
    return np.array([index[label] for label in labels], np.float64), classes
