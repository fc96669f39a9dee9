"""From payloads to what is in them: JSON, CBOR, MessagePack and InfluxDB line protocol.

JSON (RFC 8259) is taken with nothing beyond it: no NaN, no infinity, nothing behind the message. Of CBOR
(RFC 8949) tags are refused that would build something else than numbers, text, lists and maps: they cost
time and memory (regular expressions, MIME messages, shared references), and no sensor needs them.
Timestamps of MessagePack are read as Unix seconds. A line of InfluxDB's is a message in the form of
Telegraf's JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from edged.domain.line_protocol import Record
from edged.domain.line_protocol import parse as parse_lines
from edged.errors import RejectedSampleError, required
from edged.mqtt.codecs.objects import Parse, check_size
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


# ---- CBOR --------------------------------------------------------------------------------

DEEPEST = 100
_TIMES = (0, 1)  # as text and as a number: what they tag is read as a time anywhere
_BUILT = (
    2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799,
)  # fmt: skip
_CBOR = b"\xd9\xd9\xf7"  # tag 55799, which says of itself that this is CBOR
# The library does not tell what follows a message. So it gets a pair: the message and this text.
_PAIR, _END = b"\x82", "edged-end"
_ENCODED_END = b"\x69edged-end"


def cbor_values(*, text_keys: bool) -> Callable[[bytes, int], Any]:
    """A function from a payload of at most so many bytes to what is in it.

    With `text_keys` the keys of maps are text or byte strings, whose hashes nobody can make collide.

    Raises UnavailableError when cbor2 is not installed.
    """
    cbor2: Any = required("cbor2", "codecs", "stream.codec")
    loads = cbor2.loads
    broken = (cbor2.CBORDecodeError, ValueError, OverflowError)
    options = {
        "tag_hook": _refuse_tag,
        "semantic_decoders": dict.fromkeys(_BUILT, _refuse_tag) | dict.fromkeys(_TIMES, _untagged),
        "max_depth": DEEPEST,
        "strict_hashable_types": text_keys,
    }

    def decode(payload: bytes, largest: int) -> Any:
        check_size(payload, largest)
        try:
            message, end = loads(_PAIR + payload.removeprefix(_CBOR) + _ENCODED_END, **options)
        except broken as problem:
            raise _refusal(problem) from None
        if end != _END:
            raise RejectedSampleError("not_cbor", "not CBOR: something follows the message")
        return message

    return decode


def _refusal(problem: Exception) -> RejectedSampleError:
    if isinstance(problem.__cause__, RejectedSampleError):
        return problem.__cause__
    if "nesting depth" in str(problem):
        return RejectedSampleError("too_deep", "nested too deeply")
    return RejectedSampleError("not_cbor", f"not CBOR: {problem}".splitlines()[0][:200])


def _untagged(value: Any, _immutable: bool) -> Any:
    return value


def _refuse_tag(*_: Any) -> Any:
    raise RejectedSampleError("wrong_type", "CBOR tags are not taken, those of times excepted")


# ---- MessagePack and line protocol -------------------------------------------------------

_SECONDS = 1  # the library's number for timestamps as floats


def msgpack_values() -> Parse:
    """A function from a payload to what is in it.

    The library allocates no more than the payload could fill, and goes no deeper than its own stack.

    Raises UnavailableError when msgpack is not installed.
    """
    msgpack: Any = required("msgpack", "codecs", "stream.codec")
    unpack, too_deep = msgpack.unpackb, (msgpack.StackError, RecursionError)
    broken = (ValueError, OverflowError, msgpack.UnpackException)

    def parse(payload: bytes, largest: int) -> Any:
        check_size(payload, largest)
        try:
            return unpack(payload, timestamp=_SECONDS, strict_map_key=True)
        except too_deep:
            raise RejectedSampleError("too_deep", "nested too deeply") from None
        except broken as problem:
            what = str(problem) or type(problem).__name__
            raise RejectedSampleError("not_msgpack", f"not MessagePack: {what}"[:200]) from None

    return parse


NANOSECONDS_FROM = 1e8  # seconds; smaller times were in a coarser unit, which `parse_time` finds


def parse_influx(payload: bytes, largest: int) -> Any:
    """The messages in lines of at most `largest` bytes.

    Raises RejectedSampleError: `too_big` or `not_line_protocol`.

    >>> parse_influx(b"cpu,host=a idle=98.1 1650006388000000000", 100)
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
