"""Which format a file has, and opening it."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from edged.errors import ConfigError
from edged.storage.recordings.csv_file import CsvSource
from edged.storage.recordings.frame import Frame
from edged.storage.recordings.home_assistant import RecorderSource
from edged.storage.recordings.parquet import ParquetSource
from edged.storage.recordings.records import JsonLinesSource, LineProtocolSource

if TYPE_CHECKING:
    from edged.storage.recordings.rows import Source

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
    """Open a file of rows in one of the `FORMATS` but npz, or columns in memory.

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
