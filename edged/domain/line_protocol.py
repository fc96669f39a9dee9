"""InfluxDB line protocol: `measurement,tag=value field=1.5,count=3i 1650006388000000000`.

Source: "Line protocol reference" of InfluxDB v2. A string cannot hold a line break.
"""

from __future__ import annotations

import re
from typing import TypedDict

from edged.errors import RejectedSampleError

_NAME = re.compile(r"(?:\\[, ]|[^, ])+")
_TAG = re.compile(r",((?:\\[,= ]|[^,= ])+)=((?:\\[,= ]|[^,= ])+)")
_FIELD = re.compile(r'((?:\\[,= ]|[^,= ])+)=("(?:\\.|[^"\\])*"|[^ ,"]+)(,(?=[^ ])|(?= |$))')
_TIME = re.compile(r" +(-?[0-9]{1,19}) *")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"(?:-?[0-9]{1,19}i|[0-9]{1,20}u)")
_ESCAPED = re.compile(r"\\([,= ])")
_ESCAPED_IN_TEXT = re.compile(r'\\(["\\])')
_WORDS = dict.fromkeys(("t", "T", "true", "True", "TRUE"), True)
_WORDS |= dict.fromkeys(("f", "F", "false", "False", "FALSE"), False)


class Record(TypedDict):
    """One line: a measurement with its tags, its fields and its time in Unix seconds."""

    name: str
    tags: dict[str, str]
    fields: dict[str, float | bool | str]
    timestamp: float | None


def parse(text: str) -> list[Record]:
    """Parse lines in their order, passing over empty lines and comments.

    Raises RejectedSampleError (`not_line_protocol`) with the number of the first line that is malformed.

    >>> parse("cpu,host=a idle=98.1,procs=120i,ok=t 1650006388000000000")[0]["fields"]
    {'idle': 98.1, 'procs': 120, 'ok': True}
    """
    records = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            record = parse_line(line)
        except RejectedSampleError as problem:
            raise RejectedSampleError(problem.reason, f"line {number}: {problem.what}") from None
        if record is not None:
            records.append(record)
    return records


def parse_line(line: str) -> Record | None:
    """Parse one line; None for an empty line or a comment.

    Raises RejectedSampleError (`not_line_protocol`).
    """
    line = line.strip("\r\n\t ")
    if not line or line[0] == "#":
        return None
    name = _NAME.match(line)
    if name is None:
        raise _malformed(line, 0, "a measurement")
    at = name.end()
    tags: dict[str, str] = {}
    while tag := _TAG.match(line, at):
        tags[_plain(tag[1])] = _plain(tag[2])
        at = tag.end()
    if line[at : at + 1] != " ":
        raise _malformed(line, at, "a tag as name=value, or a space")
    while line[at] == " ":
        at += 1
    fields, at = _fields(line, at)
    time = _TIME.fullmatch(line, at)
    if time is None and at < len(line):
        raise _malformed(line, at, "the time in nanoseconds")
    timestamp = int(time[1]) / 1e9 if time else None
    return Record(name=_plain(name[0], "="), tags=tags, fields=fields, timestamp=timestamp)


def _fields(line: str, at: int) -> tuple[dict[str, float | bool | str], int]:
    """Return the fields from position `at` on, and the position behind them."""
    fields: dict[str, float | bool | str] = {}
    more = True
    while more:
        field = _FIELD.match(line, at)
        if field is None:
            raise _malformed(line, at, "a field as name=value")
        fields[_plain(field[1])] = _value(field[2])
        at, more = field.end(), field[3] == ","
    return fields, at


def _value(text: str) -> float | bool | str:
    if _NUMBER.fullmatch(text):
        return float(text)
    if _INTEGER.fullmatch(text):
        return int(text[:-1])
    if text[0] == '"':
        return _ESCAPED_IN_TEXT.sub(r"\1", text[1:-1])
    if text in _WORDS:
        return _WORDS[text]
    raise RejectedSampleError(
        "not_line_protocol", f"value {text[:40]!r} is no number, boolean or text in double quotes"
    )


def _plain(text: str, literal: str = "") -> str:
    """Undo the escapes of a name; a measurement has none of `=`."""
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: found[0] if found[1] == literal else found[1], text)


def _malformed(line: str, at: int, expected: str) -> RejectedSampleError:
    found = repr(line[at : at + 40]) if at < len(line) else "the end"
    return RejectedSampleError(
        "not_line_protocol", f"{expected} was expected at column {at + 1}, not {found}"
    )
