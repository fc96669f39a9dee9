"""JSON objects from outside, and the kinds of their fields: names, checksums, bounded texts and numbers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from edged.errors import RejectedUpdateError

JsonObject = Mapping[str, object]
"""A JSON object that is passed on as it is, to print, send or store; who reads its fields needs a type."""

MALFORMED = "malformed"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
LARGEST = 2**53


def parse_object(payload: bytes, limit: int, where: str) -> JsonObject:
    """Return the JSON object of at most `limit` bytes in a payload.

    Raises RejectedUpdateError when there is none, it is too large, or holds NaN or infinity.
    """
    if len(payload) > limit:
        raise RejectedUpdateError(MALFORMED, f"{len(payload)} bytes, at most {limit} are read", where=where)
    try:
        values = _DECODER.decode(payload.decode(json.detect_encoding(payload)))
    except (ValueError, RecursionError):
        raise RejectedUpdateError(MALFORMED, "this is no JSON", where=where) from None
    if not isinstance(values, dict):
        raise RejectedUpdateError(MALFORMED, "this is no JSON object", where=where)
    return values


def _no_number(text: str) -> float:
    raise ValueError(text)


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def json_ready(values: Any) -> Any:
    """The same with null for numbers that JSON does not have.

    >>> json_ready({"mae": float("nan"), "rows": (1, 2.5)})
    {'mae': None, 'rows': [1, 2.5]}
    """
    if isinstance(values, float) and not math.isfinite(values):
        return None
    if isinstance(values, dict):
        return {key: json_ready(value) for key, value in values.items()}
    return [json_ready(value) for value in values] if isinstance(values, list | tuple) else values


@dataclass(frozen=True)
class Rule:
    """A rule for the values of a field, beside their type; `expected` describes them in errors."""

    expected: str
    holds: Callable[[Any], object]


def matching(pattern: re.Pattern[str], expected: str) -> Rule:
    """Texts that match a pattern as a whole."""
    return Rule(expected, pattern.fullmatch)


def text_up_to(longest: int) -> Rule:
    """Texts of at most `longest` characters."""
    return Rule(f"a text of at most {longest} characters", lambda text: len(text) <= longest)


def count_from(least: int, most: int = LARGEST) -> Rule:
    """Whole numbers from `least` to `most`."""
    return Rule(f"a whole number from {least} to {most}", lambda count: least <= count <= most)


Name = Annotated[str, matching(NAME, "a name")]  # of a device or fleet: one level of a topic
Names = Annotated[
    tuple[Name, ...], Rule("a list of names, each once", lambda names: len(set(names)) == len(names))
]
Token = Annotated[str, matching(re.compile("[0-9a-f]{32}"), "16 bytes in hexadecimal")]
Digest = Annotated[str, matching(re.compile("[0-9a-f]{64}"), "a SHA-256")]  # in lower hexadecimal digits
ShortText = Annotated[str, text_up_to(200)]
ShortTexts = tuple[ShortText, ...]
Number = Annotated[float, Rule("a finite number", math.isfinite)]
NotNegative = Annotated[float, Rule("a finite number from 0", lambda number: 0 <= number < math.inf)]
Count = Annotated[int, count_from(0)]
AtLeastOne = Annotated[int, count_from(1)]
