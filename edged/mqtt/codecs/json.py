"""JSON (RFC 8259), and nothing beyond it: no NaN, no infinity, nothing behind the message."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from edged.errors import RejectedSampleError
from edged.mqtt.codecs.objects import check_size
from edged.mqtt.field_access import Message

_SPACE = " \t\r\n"

Scan = Callable[[str, int], tuple[Any, int]]
"""From a text and a position in it to the value there, and the position behind it."""


def parse(payload: bytes, largest: int) -> Message:
    """The JSON object in a payload of at most `largest` bytes.

    Raises RejectedSampleError: `too_big`, `not_json`, `too_deep`, `not_finite` or `wrong_type`.
    """
    message = parse_any(payload, largest)
    if type(message) is not dict:
        raise RejectedSampleError("wrong_type", "a message must be a JSON object")
    return message


def parse_lenient(payload: bytes, largest: int) -> Any:
    """`parse_any` of a payload in which NaN and infinity may stand for numbers that are missing."""
    return parse_any(payload, largest, _scan_lenient)


def parse_any(payload: bytes, largest: int, scan: Scan | None = None) -> Any:
    """Whatever JSON there is in a payload of at most `largest` bytes, as `scan` reads it.

    Raises RejectedSampleError: `too_big`, `not_json`, `too_deep` or `not_finite`.
    """
    if len(payload) > largest:
        check_size(payload, largest)
    if scan is None:
        try:
            return from_json(payload, allow_inf_nan=False, cache_strings="none")
        except ValueError:
            pass  # the decoder below takes twice the time, says more plainly what is wrong, and nests deeper
    try:
        text = payload.decode()
        if text[:1] != "{":
            text = text.lstrip(_SPACE)
        message, end = (scan or _scan)(text, 0)
    except RecursionError:
        raise RejectedSampleError("too_deep", "nested too deeply") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise RejectedSampleError("not_json", f"not JSON: {problem}") from None
    except StopIteration as problem:
        raise RejectedSampleError("not_json", f"not JSON: no value at character {problem.value}") from None
    except ValueError as problem:
        # An integer with more digits than Python converts.
        raise RejectedSampleError("not_finite", f"a number is out of range: {str(problem)[:80]}") from None
    if end != len(text) and text[end:].strip(_SPACE):
        raise RejectedSampleError("not_json", f"not JSON: something follows at character {end}")
    return message


def _refuse_constant(token: str) -> float:
    raise RejectedSampleError("not_finite", f"{token} is not a finite number, nor JSON")


# The part of the decoder that is written in C; its `raw_decode` is one more call around it.
_scan: Scan = json.JSONDecoder(parse_constant=_refuse_constant).scan_once  # type: ignore[attr-defined]
_scan_lenient: Scan = json.JSONDecoder(parse_constant=lambda _: math.nan).scan_once  # type: ignore[attr-defined]
