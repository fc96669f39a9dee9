"""Files that are read row by row: CSV, JSON lines, InfluxDB line protocol, Parquet.

Text may be compressed by gzip. Parquet needs the package pyarrow (extra `parquet`), which is loaded when such
a file is opened.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

from typing_extensions import Self

from edged.domain.line_protocol import parse_line
from edged.errors import ConfigError, RejectedSampleError, UnavailableError
from edged.storage.recordings.rows import ABSENT

Fields = dict[str, Any]

_LOOKED_AT = 1000  # records, for the names of the columns
_BATCH = 8192  # rows of Parquet in memory


# ---- CSV -----------------------------------------------------------------------------------------


def open_text(path: Path) -> TextIO:
    """Open a text file for reading, through gzip where its name says so."""
    # A byte order mark is no part of the first column's name.
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


class CsvSource:
    """Rows of a CSV; see `rows.Source`."""

    unit = "line"
    content = "a row"

    def __init__(self, file: TextIO) -> None:
        self._reader = csv.reader(file, strict=True)
        with self._named_lines():
            header, self._first = next(self._reader, []), next(self._reader, [])
        self._first_line = self._reader.line_num
        self.names = self.features = tuple(name.strip() for name in header)
        _check_header(self.names)
        self.first: dict[str, Any] = dict(zip(self.names, self._first, strict=False))

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[CsvSource]:
        """Open a file; ConfigError when it has no header."""
        with open_text(path) as file:
            yield cls(file)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[Any] | None]]:
        """Each row's line and its cells of `columns`; ConfigError for a line with another number of cells."""
        width, reader = len(self.names), self._reader
        places = [self.names.index(name) for name in columns]
        pick = itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)
        with self._named_lines():
            for row in chain([self._first], reader):
                line = self._first_line if row is self._first else reader.line_num
                if len(row) == width:
                    yield line, pick(row)
                elif row:  # an empty line is usually the last one
                    what = f"has {len(row)} values, the header names {width}"
                    raise ConfigError(what, where=f"line {line}")

    @contextmanager
    def _named_lines(self) -> Iterator[None]:
        try:
            yield
        except csv.Error as problem:
            raise ConfigError(str(problem), where=f"line {self._reader.line_num}") from problem


def _check_header(header: tuple[str, ...]) -> None:
    other = next((sign for sign in ";\t|" if len(header) == 1 and sign in header[0]), None)
    if other is not None:
        raise ConfigError(
            f"columns are separated by {other!r}", where="line 1", remedy="separate them by commas"
        )
    if all(_is_number(name) for name in header):
        raise ConfigError("is no header", where="line 1", remedy="name the columns in the first line")
    if "" in header:
        # Most often the row numbers that some writers put first: never a feature.
        raise ConfigError(
            f"column {header.index('') + 1} has no name", where="line 1", remedy="name or remove it"
        )
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise ConfigError(f"names {twice[0]!r} twice", where="line 1", remedy="give each column its own name")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


# ---- records -------------------------------------------------------------------------------------


class _Records:
    """Records of named fields; see `rows.Source`. A line that is none is a malformed row."""

    unit = "line"
    content: str

    def __init__(self, file: TextIO) -> None:
        lines = self._read(file)
        self._begin = list(islice(lines, _LOOKED_AT))
        self._rest = lines
        records = [fields for _, fields in self._begin if fields is not None]
        if self._begin and not records:
            raise ConfigError(f"no line of it is {self.content}", where="line 1", remedy="check --format")
        self.names = tuple(dict.fromkeys(name for fields in records for name in fields))
        self.features = self._features()
        self.first: Fields = records[0] if records else {}

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open a file; ConfigError when none of its first lines is a record."""
        with open_text(path) as file:
            yield cls(file)

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[Any] | None]]:
        """Each record's line and its cells of `columns`; None for a line that is no record."""
        for line, fields in chain(self._begin, self._rest):
            if fields is None:
                yield line, None
            else:
                yield line, [fields.get(name, ABSENT) for name in columns]

    def _features(self) -> tuple[str, ...]:
        return self.names

    def _read(self, lines: TextIO) -> Iterator[tuple[int, Fields | None]]:
        raise NotImplementedError


class JsonLinesSource(_Records):
    """JSON objects; a field within another is named by its path, such as `vib.x` or `axes.0`."""

    content = "a JSON object"

    def _read(self, lines: TextIO) -> Iterator[tuple[int, Fields | None]]:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    found = None
                yield number, flat(found) if isinstance(found, dict) else None


class LineProtocolSource(_Records):
    """InfluxDB line protocol: columns are fields and tags, by their names or as Telegraf's JSON has them.

    So `usage_idle`, `fields.usage_idle` and `cpu.usage_idle` are the same field of measurement `cpu`.
    """

    content = "line protocol"

    def _read(self, lines: TextIO) -> Iterator[tuple[int, Fields | None]]:
        for number, line in enumerate(lines, 1):
            try:
                record = parse_line(line)
            except RejectedSampleError:
                yield number, None
                continue
            if record is not None:
                name, found = record["name"], Fields()
                for kind, values in (("tags", record["tags"]), ("fields", record["fields"])):
                    for key, value in values.items():
                        found[key] = found[f"{kind}.{key}"] = found[f"{name}.{key}"] = value
                found["name"] = name
                if record["timestamp"] is not None:
                    found["timestamp"] = record["timestamp"]
                yield number, found

    def _features(self) -> tuple[str, ...]:
        return tuple(name.removeprefix("fields.") for name in self.names if name.startswith("fields."))


def flat(value: Any) -> Fields:
    """The fields of an object by their paths, without objects and arrays themselves.

    >>> flat({"a": 1, "vib": {"x": 2, "axes": [3, 4]}})
    {'a': 1, 'vib.x': 2, 'vib.axes.0': 3, 'vib.axes.1': 4}
    """
    found: Fields = {}
    for name, inner in value.items():
        if isinstance(inner, list):
            inner = dict(enumerate(inner))  # noqa: PLW2901  an array is walked as an object is
        if isinstance(inner, dict):
            found |= {f"{name}.{path}": leaf for path, leaf in flat(inner).items()}
        else:
            found[name] = inner
    return found


# ---- Parquet -------------------------------------------------------------------------------------


class ParquetSource:
    """Rows of a Parquet file, one batch in memory at a time; see `rows.Source`."""

    unit = "row"
    content = "a row"

    def __init__(self, file: Any, arrow: Any) -> None:
        self._file = file
        # Python's times have microseconds, and no more.
        stamp, types = arrow.timestamp("us", "UTC"), arrow.types
        self._schema = arrow.schema(
            [
                (
                    field.name,
                    stamp if types.is_timestamp(field.type) or types.is_date(field.type) else field.type,
                )
                for field in file.schema_arrow
            ]
        )
        first = next(self._batches(1), None)
        self.first: dict[str, Any] = flat(first.to_pylist()[0]) if first is not None else {}
        self.names = self.features = tuple(self.first or file.schema_arrow.names)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[ParquetSource]:
        """Open a file; ConfigError when it is no Parquet, UnavailableError without pyarrow."""
        try:
            parquet, arrow = import_module("pyarrow.parquet"), import_module("pyarrow")
        except ImportError as problem:
            raise UnavailableError(
                f"the package pyarrow is missing: {problem}", where=str(path),
                remedy='pip install "edged[parquet]"',
            ) from problem  # fmt: skip
        try:
            with parquet.ParquetFile(path) as file:
                yield cls(file, arrow)
        except arrow.ArrowException as problem:
            line = str(problem).partition("\n")[0]
            raise ConfigError(f"no Parquet file: {line}", remedy="fetch or write it again") from problem

    def rows(self, columns: Sequence[str]) -> Iterator[tuple[int, Sequence[Any] | None]]:
        """Each row's number, from 0, and its cells of `columns`."""
        plain = set(self._file.schema_arrow.names)
        number = 0
        for batch in self._batches(_BATCH):
            if plain.issuperset(columns):
                cells = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
                yield from enumerate(cells, number)
            else:
                for at, row in enumerate(batch.to_pylist(), number):
                    fields = flat(row)
                    yield at, [fields.get(name, ABSENT) for name in columns]
            number += len(batch)

    def _batches(self, rows: int) -> Iterator[Any]:
        for batch in self._file.iter_batches(rows):
            yield batch.cast(self._schema, safe=False)
