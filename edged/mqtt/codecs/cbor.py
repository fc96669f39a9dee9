"""CBOR (RFC 8949): one map with text keys a message.

Tags that would build something else than numbers, text, lists and maps are refused: they cost time and
memory (regular expressions, MIME messages, shared references), and no sensor needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edged.errors import RejectedSampleError
from edged.mqtt.codecs.objects import Parse, check_size
from edged.mqtt.optional_packages import required

DEEPEST = 100
_TIMES = (0, 1)  # as text and as a number: what they tag is read as a time anywhere
_BUILT = (
    2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799,
)  # fmt: skip
_CBOR = b"\xd9\xd9\xf7"  # tag 55799, which says of itself that this is CBOR
# The library does not tell what follows a message. So it gets a pair: the message and this text.
_PAIR, _END = b"\x82", "edged-end"
_ENCODED_END = b"\x69edged-end"


def parser() -> Parse:
    """A function from a payload to what is in it; UnavailableError when cbor2 is not installed."""
    return cbor_values(text_keys=True)


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
