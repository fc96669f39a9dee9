"""Messages in a file: a CSV table, JSON lines, or the output of `mosquitto_sub -v`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice
from math import isfinite
from pathlib import Path

from edged.errors import ConfigError
from edged.storage.recordings.reader import open_source, readable
from edged.storage.recordings.sources import open_text

MOST = 20_000
"""Lines that are read: enough to know the contents of a stream."""


def messages(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield topic and payload of the first messages in a file.

    Rows of a CSV table and JSON objects without `topic` and `payload` come on `sensors/<name of the file>`.
    Raises ConfigError when the file cannot be read or holds something else.
    """
    topic = f"sensors/{path.name.partition('.')[0]}"
    with readable(path):
        if path.name.removesuffix(".gz").endswith(".csv"):
            with open_source(path, "csv") as source:
                for _, cells in islice(source.rows(source.names), MOST):
                    row = dict(zip(source.names, map(_cell, cells or ()), strict=False))
                    yield topic, json.dumps(row).encode()
            return
        with open_text(path) as file:
            first = next((line for line in file if line.strip()), "")
            if "\0" in first or not first:
                what = "the file is not text" if first else "the file is empty"
                raise ConfigError(what, remedy="use CSV, JSON lines or the output of mosquitto_sub -v")
            lines = (line for line in islice(chain([first], file), MOST) if line.strip())
            if first.lstrip().startswith("{"):
                yield from (_message(line, topic) for line in lines)
            else:
                yield from map(_printed, lines)


def _cell(text: str) -> float | str | None:
    """A cell as JSON would have it: null for an empty one and for one that is no number."""
    try:
        found = float(text)
    except ValueError:
        return text if text.strip() else None
    return found if isfinite(found) else None


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
