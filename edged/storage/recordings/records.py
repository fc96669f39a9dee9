"""Files of records, one a line: JSON lines and InfluxDB line protocol, plain or compressed by gzip."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from edged.domain.line_protocol import parse_line
from edged.errors import ConfigError, RejectedSampleError
from edged.storage.recordings.csv_file import open_text
from edged.storage.recordings.rows import ABSENT

if TYPE_CHECKING:
    from typing_extensions import Self

Fields = dict[str, Any]

_LOOKED_AT = 1000  # records, for the names of the columns


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
