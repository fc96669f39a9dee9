"""Words of people and switches for labels: classes in any case of letters, and words that end a label."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from edged.domain.stream.value_words import MISSING_WORDS, number_of
from edged.errors import RejectedSampleError

if TYPE_CHECKING:
    from edged.domain.stream.sample import LabelValue
    from edged.domain.stream.schema import Schema

_ENDS = MISSING_WORDS | {"off"}


def ends(value: Any, schema: Schema) -> bool:
    """Return whether a value ends the label that holds: null, or a word for it that is no class."""
    return value is None or (
        isinstance(value, str) and value.lower() in _ENDS and _class(value, schema) is None
    )


def label_of(value: Any, schema: Schema) -> LabelValue:
    """The label that a person or a switch means, in whatever case of letters.

    Raises RejectedSampleError with reason `label`.
    """
    if isinstance(value, str):
        value = (_class(value, schema) or value) if schema.task == "classify" else _number(value)
    return schema.parse_label(value)


def _class(text: str, schema: Schema) -> str | None:
    """The class that a text names; None where that is none, or not clear."""
    same = [name for name in schema.classes if name.lower() == text.lower()]
    return text if text in same else same[0] if len(same) == 1 else None


def _number(text: str) -> float:
    number = number_of(text)
    if math.isnan(number):
        raise RejectedSampleError("label", f"label {text[:40]!r} is no number")
    return number
