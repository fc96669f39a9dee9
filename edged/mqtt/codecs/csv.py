"""CSV (RFC 4180): each line a reading, its columns in the order that the configuration names."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from typing import Any

from edged.config import StreamConfig
from edged.domain.stream.sample import Decoded
from edged.errors import RejectedSampleError
from edged.mqtt.codecs.objects import POSITIONAL, ReadingFields, check_size
from edged.mqtt.field_access import Message

MOST_LINES = 1000

Cells = list[str]


class CsvCodec:
    """Decodes lines of CSV without a header.

    The columns are `stream.columns`, or the features in their order. The column `x` stands for all
    features where these have no names, and the label's for all targets. An empty cell is nothing.

    >>> from edged.config import StreamConfig
    >>> stream = StreamConfig(features=["a", "b"], codec="csv", columns=["when", "b", "a"], ts="when")
    >>> reading = CsvCodec(stream).decode("t", b"1700000000,2,1")
    >>> reading.values, reading.ts
    ([1.0, 2.0], 1700000000.0)
    """

    def __init__(self, stream: StreamConfig) -> None:
        self._largest = stream.max_payload
        self._delimiter = {"tab": "\t"}.get(stream.delimiter, stream.delimiter)
        self._columns = [(name, count, _reader(stream, name)) for name, count in columns_of(stream)]
        self._width = sum(count for _, count, _ in self._columns)
        self._reading = ReadingFields(stream).reading

    def decode(self, topic: str, payload: bytes) -> Decoded:
        """The reading in a line, or the readings in several.

        Raises RejectedSampleError with its reason; no line of the message can become a sample.
        """
        check_size(payload, self._largest)
        try:
            text = payload.decode()
        except UnicodeDecodeError as problem:
            raise RejectedSampleError("not_csv", f"not text: {problem}") from None
        lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        if len(lines) == 1:
            return self._reading(topic, self._message(lines[0]))
        if len(lines) > MOST_LINES:
            raise RejectedSampleError("shape", f"{len(lines)} lines, at most {MOST_LINES} are taken")
        return [self._reading(topic, self._message(line)) for line in lines]

    def _message(self, line: str) -> Message:
        cells = self._cells(line)
        if len(cells) != self._width:
            raise RejectedSampleError("shape", f"{len(cells)} columns, expected {self._width}")
        message: Message = {}
        at = 0
        for name, count, read in self._columns:
            if count == 1 and name != POSITIONAL:
                message[name] = read(cells[at])
            else:
                message[name] = [read(cell) for cell in cells[at : at + count]]
            at += count
        return message

    def _cells(self, line: str) -> Cells:
        if '"' not in line:
            return line.split(self._delimiter)
        try:
            return next(csv.reader([line], delimiter=self._delimiter, strict=True))
        except csv.Error as problem:
            raise RejectedSampleError("not_csv", f"not CSV: {problem}") from None


def columns_of(stream: StreamConfig) -> list[tuple[str, int]]:
    """The columns' names, and how many cells each stands for."""
    names = stream.columns or (list(stream.names) or [POSITIONAL])
    counts = {POSITIONAL: stream.width} if not stream.names else {}
    if stream.label_path is not None and stream.resolved_task == "regress":
        counts[stream.label_path] = stream.targets
    return [(name, counts.get(name, 1)) for name in names]


def _reader(stream: StreamConfig, name: str) -> Callable[[str], Any]:
    """How a column is read: keys, ids and names of classes are text, whatever they look like."""
    if name == POSITIONAL or name in stream.names:
        return _feature
    if name in (stream.key_spec, stream.id):
        return _text
    if name == stream.label_path and stream.to_schema().open is not None:
        return _text
    if name == stream.label_path and isinstance(stream.classes, list):
        classes = frozenset(stream.classes)
        return lambda cell: cell if cell in classes else _value(cell)
    return _value


def _text(cell: str) -> str | None:
    return cell or None


def _feature(cell: str) -> float | str | None:
    """A number; text that is none is left for the check of all features to name."""
    number = _number(cell)
    if number is None:
        return cell or None
    if not math.isfinite(number):
        raise RejectedSampleError("not_finite", f"{cell[:40]!r} is no finite number")
    return number


def _value(cell: str) -> int | float | str | None:
    """A time or label: a number where it looks like one."""
    if not cell:
        return None
    if len(cell) < 19 and cell.isascii() and cell.removeprefix("-").isdigit():
        return int(cell)
    number = _number(cell)
    return cell if number is None or not math.isfinite(number) else number


def _number(cell: str) -> float | None:
    # Python reads more as numbers than CSV means: digits of other scripts, and 1_000.
    if not cell.isascii() or "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None
