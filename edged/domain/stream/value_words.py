"""Numbers from what sensors say: words, booleans and numbers in text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edged.errors import RejectedSampleError

MISSING_WORDS = frozenset({"", "none", "null", "nan", "unknown", "unavailable"})
KNOWN_WORDS = {"on": 1.0, "true": 1.0, "open": 1.0, "off": 0.0, "false": 0.0, "closed": 0.0}
LARGEST = 3.4028234663852886e38
NAN = math.nan


def number_of(value: Any, words: Mapping[str, float] | None = None) -> float:
    """The number that a value stands for; NaN where it says that there is none.

    `words` are numbers by lower-case word and come before those that are known by themselves.

    >>> number_of("ON"), number_of(" 21.5 "), number_of("idle", {"idle": 2.0}), number_of("unavailable")
    (1.0, 21.5, 2.0, nan)

    Raises RejectedSampleError: `wrong_type` for anything else, `not_finite` for what float32 cannot hold.
    """
    kind = type(value)
    if words is None and (kind is float or kind is int):
        number = value
    elif value is None:
        return NAN
    elif kind is bool or kind is int or kind is float or kind is str:
        number = _word(value, words)
    else:
        what = "an object" if kind is dict else "an array" if kind is list else f"a {kind.__name__}"
        raise RejectedSampleError("wrong_type", f"it is {what}, not a number")
    if -LARGEST <= number <= LARGEST:
        return float(number)
    if math.isnan(number):
        return NAN
    raise RejectedSampleError("not_finite", "it is no finite float32 number")


def _word(value: bool | float | str, words: Mapping[str, float] | None) -> float:
    text = str(value).strip().lower()
    if words is not None and text in words:
        return words[text]
    if text in KNOWN_WORDS:
        return KNOWN_WORDS[text]
    if text in MISSING_WORDS:
        return NAN
    try:
        return float(text) if "_" not in text else float("x")
    except ValueError:
        known = ", ".join(words) if words else "on, off, true, false, open, closed"
        raise RejectedSampleError(
            "wrong_type", f"{text[:40]!r} is neither a number nor one of the words {known}: name it in values"
        ) from None
