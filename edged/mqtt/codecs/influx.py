"""InfluxDB line protocol: each line is a message in the form of Telegraf's JSON."""

from __future__ import annotations

from typing import Any

from edged.domain.line_protocol import Record
from edged.domain.line_protocol import parse as parse_lines
from edged.errors import RejectedSampleError
from edged.mqtt.codecs.objects import Parse, check_size

NANOSECONDS_FROM = 1e8  # seconds; smaller times were in a coarser unit, which `parse_time` finds


def parser() -> Parse:
    """A function from lines to messages of `name`, `tags`, `fields` and `timestamp`."""
    return parse


def parse(payload: bytes, largest: int) -> Any:
    """The messages in lines of at most `largest` bytes.

    Raises RejectedSampleError: `too_big` or `not_line_protocol`.

    >>> parse(b"cpu,host=a idle=98.1 1650006388000000000", 100)
    [{'name': 'cpu', 'tags': {'host': 'a'}, 'fields': {'idle': 98.1}, 'timestamp': 1650006388.0}]
    """
    check_size(payload, largest)
    try:
        records = parse_lines(payload.decode())
    except UnicodeDecodeError as problem:
        raise RejectedSampleError("not_line_protocol", f"not text: {problem}") from None
    for record in records:
        in_nanoseconds(record)
    return records


def in_nanoseconds(record: Record | None) -> Record | None:
    """The record itself; a time not in nanoseconds gets its number back, whose size tells the unit."""
    if record is not None and record["timestamp"] is not None and record["timestamp"] < NANOSECONDS_FROM:
        record["timestamp"] *= 1e9
    return record
