"""Finding and checking the fields of a decoded message; accessors are made once per stream."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from typing import Any

from edged.errors import COMPARED, ConfigError, RejectedSampleError, did_you_mean, one_of

MAX_KEY = 256
MAX_ID = 128
FLOAT32_MAX = 3.4028234663852886e38
LAST_SECOND = 1e11  # in the year 5138; more is in milliseconds, since 1973
SMALLER_UNITS = (10**3, 10**6, 10**9)  # in a second
MISSING: Any = object()

Getter = Callable[[Any], Any]
Message = dict[str, Any]
"""A decoded message: its fields by name."""

Features = Callable[[Message], list[float]]

_FLOATS = {float}
_NUMBERS = {int, float}
_KINDS = {
    dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null",
    int: "a number", float: "a number", bytes: "a byte string",
}  # fmt: skip
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?(Z|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII | re.IGNORECASE,
)

_CHOICE = re.compile(r"\[[^\[\]=]+=[^\[\]]+\]")
_CHOOSING = re.compile(rf"(?:(?:^|\.)[^.\[\]]+|{_CHOICE.pattern})+")


def field(path: str) -> Getter:
    """A function from a message to the value at `path`, or MISSING.

    A key that is the whole path counts first; then the path is walked: names through objects, numbers through
    arrays, `[name=text]` to the first object with that field, of an array or the one that is there.

    >>> field("axes.1.rms")({"axes": [{"rms": 1}, {"rms": 2}]})
    2
    >>> field("tags[name=speed].value")({"tags": [{"name": "speed", "value": 3}]})
    3
    """
    if _CHOICE.search(path) and _CHOOSING.fullmatch(path):
        return _choosing(path)
    if "." not in path:
        return lambda message: message.get(path, MISSING)
    parts = path.split(".")

    def walk(message: Any) -> Any:
        value = message.get(path, MISSING)
        if value is MISSING:
            value = message
            for part in parts:
                value = value.get(part, MISSING) if type(value) is dict else _step(value, part)
        return value

    return walk


def _choosing(path: str) -> Getter:
    """`field` for paths that choose among objects."""
    steps: list[Getter] = []
    for choice in re.split(r"(\[[^\[\]]+\])", path):
        if choice.startswith("["):
            name, _, text = choice[1:-1].partition("=")
            steps.append(partial(_first_with, field(name), text))
        else:
            steps += [partial(_step, part=part) for part in choice.split(".") if part]

    def walk(message: Any) -> Any:
        value = message.get(path, MISSING)
        if value is MISSING:
            value = message
            for step in steps:
                value = step(value)
        return value

    return walk


def _first_with(getter: Getter, text: str, value: Any) -> Any:
    """The first object of an array, or the object itself, in which a field is this text or number."""
    for item in value if type(value) is list else (value,):
        if type(item) is dict:
            found = getter(item)
            if found == text or (type(found) in _NUMBERS and str(found) == text):
                return item
    return MISSING


def _step(value: Any, part: str) -> Any:
    if type(value) is dict:
        return value.get(part, MISSING)
    if type(value) is list and part.isdecimal() and len(part) < 10 and int(part) < len(value):
        return value[int(part)]
    return MISSING


def features_of(names: str | Sequence[str], width: int) -> Features:
    """A function from a message to its `width` feature values in model input order.

    `names` is the name of one field that holds an array, or one path for each feature.
    """
    if isinstance(names, str):
        return _array_at(names, width)
    getters = [field(name) for name in names]
    return lambda message: numbers([getter(message) for getter in getters], names, message)


def _array_at(name: str, width: int) -> Features:
    def features(message: Message) -> list[float]:
        values = message.get(name, MISSING)
        if type(values) is not list:
            if values is MISSING:
                raise missing(name, message)
            what = f"field {name!r} must be an array of numbers, not {_kind(values)}"
            raise RejectedSampleError("wrong_type", what)
        if len(values) != width:
            raise RejectedSampleError("shape", f"field {name!r} has {len(values)} numbers, expected {width}")
        return numbers(values, None)

    return features


def missing(name: str, message: Mapping[str, Any] | None = None) -> RejectedSampleError:
    """The refusal of a message that lacks this field, with the names of those that `message` has."""
    what = f"field {name!r} is missing"
    if message is not None:
        there = list(islice(_paths(message), COMPARED))
        near = did_you_mean(name, there)
        what += (
            f": the message has {one_of(there)}" + (f"; {near}" if near else "") if there else ": it is empty"
        )
    return RejectedSampleError("missing_field", what)


def _paths(message: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Paths of a message's fields, those of objects within it too."""
    for name, value in message.items():
        path = f"{above}{name}"
        if type(value) is dict and value:
            yield from _paths(value, f"{path}.")
        else:
            yield path


def numbers(
    values: list[Any], names: Sequence[str] | None, message: Mapping[str, Any] | None = None
) -> list[float]:
    """The values as finite floats that float32 can hold; they are those of the fields `names` of `message`.

    Raises RejectedSampleError for the first bad value: `missing_field` for MISSING, `wrong_type` for anything
    else but numbers, `not_finite` for NaN and what overflows.
    """
    kinds = set(map(type, values))
    in_range = kinds <= _NUMBERS and max(values) <= FLOAT32_MAX and min(values) >= -FLOAT32_MAX
    if not in_range or math.isnan(sum(values)):  # NaN is in no order
        raise _first_problem(values, names, message)
    return values if kinds == _FLOATS else list(map(float, values))


def _first_problem(
    values: list[Any], names: Sequence[str] | None, message: Mapping[str, Any] | None
) -> RejectedSampleError:
    """The error for the first bad value, in model input order; one of them must be bad."""
    for at, value in enumerate(values):
        place = f"number {at}" if names is None else f"field {names[at]!r}"
        if value is MISSING and names is not None:
            return missing(names[at], message)
        if type(value) not in _NUMBERS:
            return RejectedSampleError("wrong_type", f"{place} is {_kind(value)}, not a number")
        if not -FLOAT32_MAX <= value <= FLOAT32_MAX:
            break
    return RejectedSampleError("not_finite", f"{place} is no finite float32 number")


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "something else")


def topic_level(spec: str) -> Callable[[str, Any], str]:
    """A function from a topic to its level N, counted from 0, for `topic:N`.

    >>> topic_level("topic:1")("sensors/press-7/vib", None)
    'press-7'
    """
    number = spec.removeprefix("topic:")
    if not (number.isascii() and number.isdecimal()):
        raise ConfigError(f"{spec!r} names no topic level", where="stream.key", remedy="for example topic:1")
    level = int(number)

    def key(topic: str, _: Any) -> str:
        levels = topic.split("/")
        if level >= len(levels):
            raise RejectedSampleError("key", f"topic {topic[:80]!r} has no level {level}")
        return parse_key(levels[level])

    return key


def parse_key(value: Any) -> str:
    """A sample's key: a string of 1 to 256 characters, or a number; RejectedSampleError with reason `key`."""
    return _name(value, "key", MAX_KEY, (str, int, float))


def parse_id(value: Any) -> str:
    """A sender's id: a string of 1 to 128 characters, or an integer; RejectedSampleError with reason `id`."""
    return _name(value, "id", MAX_ID, (str, int))


def _name(value: Any, what: str, longest: int, kinds: tuple[type, ...]) -> str:
    if value is MISSING:
        raise RejectedSampleError(what, f"the {what} is missing")
    if type(value) not in kinds or (type(value) is not str and not abs(value) <= FLOAT32_MAX):
        raise RejectedSampleError(what, f"the {what} is {_kind(value)}, which cannot be used")
    text = value if type(value) is str else str(value)
    if not 0 < len(text) <= longest:
        raise RejectedSampleError(what, f"the {what} has {len(text)} characters, 1 to {longest} are taken")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RejectedSampleError(what, f"the {what} is not Unicode text")
    return text


def parse_time(value: Any) -> float:
    """Unix seconds from seconds, milli-, micro- or nanoseconds, or ISO 8601 (UTC where it names no zone).

    The size of a number tells its unit: smaller ones begin above 1e11, 1e14 and 1e17.

    >>> parse_time(1_700_000_000_000), parse_time("2023-11-14T22:13:20Z")
    (1700000000.0, 1700000000.0)

    Raises RejectedSampleError with reason `timestamp`.
    """
    if type(value) is str:
        return _parse_iso(value)
    if type(value) not in _NUMBERS:
        raise RejectedSampleError("timestamp", f"the time is {_kind(value)}, not a number or a string")
    if 0 <= value <= LAST_SECOND:
        return float(value)
    units = next((units for units in SMALLER_UNITS if 0 <= value < LAST_SECOND * units), None)
    if units is None:
        raise RejectedSampleError("timestamp", "the time is in no unit from Unix seconds to nanoseconds")
    return float(value / units)


def _parse_iso(text: str) -> float:
    match = _ISO.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        raise RejectedSampleError("timestamp", f"{text[:40]!r} is no ISO 8601 date and time")
    parts = [int(part or 0) for part in match.groups()[:6]]
    fraction = float(f"0.{match[7] or 0}")
    try:
        moment = datetime(*parts, tzinfo=_zone(match[8]))  # type: ignore[arg-type,misc]
        seconds = moment.timestamp() + fraction
    except (ValueError, OverflowError) as problem:
        raise RejectedSampleError("timestamp", f"{text!r} is no date and time: {problem}") from None
    if seconds < 0:
        raise RejectedSampleError("timestamp", f"{text!r} is before 1970")
    return seconds


def _zone(text: str | None) -> timezone:
    if text is None or text in "Zz":
        return timezone.utc
    sign = -1 if text[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(text[1:3]), minutes=int(text[3:].lstrip(":") or 0)))
