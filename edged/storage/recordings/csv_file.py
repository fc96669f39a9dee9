"""CSV with a header, plain or compressed by gzip."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, TextIO

from edged.errors import ConfigError


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
