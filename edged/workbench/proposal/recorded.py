"""Messages in a file: a CSV table, JSON lines, or what `mosquitto_sub -v` has printed."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

from edged.errors import ConfigError

MOST = 20_000
"""Lines that are read: enough to know what a stream is like."""


def messages(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield topic and payload of the first messages in a file.

    Rows of a CSV table and JSON objects without `topic` and `payload` come on `sensors/<name of the file>`.
    Raises ConfigError when the file cannot be read or holds something else.
    """
    topic = f"sensors/{path.name.partition('.')[0]}"
    with _text(path) as file:
        first = next((line for line in file if line.strip()), "")
        if "\0" in first or not first:
            what = "the file is empty" if not first else "the file is not text"
            raise ConfigError(
                what, where=str(path), remedy="use CSV, JSON lines or the output of mosquitto_sub -v"
            )
        lines = islice(chain([first], file), MOST)
        if path.name.removesuffix(".gz").endswith(".csv"):
            yield from ((topic, json.dumps(row).encode()) for row in _rows(lines))
        elif first.lstrip().startswith("{"):
            yield from (_message(line, topic) for line in lines if line.strip())
        else:
            yield from (_printed(line) for line in lines if line.strip())


@contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    try:
        with path.open("rb") as raw, gzip.open(raw) if path.suffix == ".gz" else raw as plain:
            yield io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")
    except UnicodeDecodeError as problem:
        raise ConfigError(
            "the file is not UTF-8 text", where=str(path), remedy="save it as UTF-8"
        ) from problem
    except (EOFError, gzip.BadGzipFile) as problem:
        raise ConfigError(f"the file is damaged: {problem}", where=str(path)) from problem


def _rows(lines: Iterator[str]) -> Iterator[dict[str, float | str | None]]:
    for row in csv.DictReader(lines):
        yield {name: _cell(cell) for name, cell in row.items() if isinstance(name, str)}


def _cell(text: str | None) -> float | str | None:
    """A cell as JSON would have it: an empty one is null."""
    if text is None or not text.strip():
        return None
    try:
        return (
            float(text)
            if text.strip().lower() not in ("nan", "inf", "-inf", "infinity", "-infinity")
            else None
        )
    except ValueError:
        return text


def _message(line: str, topic: str) -> tuple[str, bytes]:
    """An object that is a message, or one that holds topic and payload of one."""
    try:
        held = json.loads(line)
    except ValueError:
        return topic, line.encode()
    if isinstance(held, dict) and isinstance(held.get("topic"), str) and "payload" in held:
        payload = held["payload"]
        return held["topic"], (payload if isinstance(payload, str) else json.dumps(payload)).encode()
    return topic, line.encode()


def _printed(line: str) -> tuple[str, bytes]:
    """A topic, a space, a payload; topics may hold spaces themselves in front of an object."""
    topic, brace, rest = line.rstrip("\r\n").partition(" {")
    if not brace:
        topic, _, rest = topic.partition(" ")
        return topic, rest.encode()
    return topic, f"{{{rest}".encode()
