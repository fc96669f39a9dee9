"""Labels that hold for their key until the next one, and the words for labels and for their end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edged.domain.stream.sample import HeldChange, HeldLabel, HoldReading, LabelValue, Reading
from edged.domain.stream.schema import Schema
from edged.domain.stream.value_words import MISSING_WORDS, number_of
from edged.errors import RejectedSampleError


class HeldLabels:
    """The labels that hold now, by key.

    >>> from edged.domain.stream.sample import HoldReading
    >>> from edged.domain.stream.sample import Reading
    >>> held = HeldLabels()
    >>> held.hold(HoldReading("pump", 1.0), 10.0)
    >>> held.labelled(Reading("pump", [0.5]), 11.0).label, held.labelled(Reading("pump", [0.5]), 9.0).label
    (1.0, None)
    """

    def __init__(self) -> None:
        self._held: dict[str, HeldLabel] = {}
        self._changed: set[str] = set()
        self._said: list[HeldChange] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def __getitem__(self, key: str) -> HeldLabel | None:
        return self._held.get(key)

    def restore(self, stored: Mapping[str, HeldLabel]) -> None:
        """Go on from what was stored; what is here is forgotten."""
        self._held, self._changed, self._said = dict(stored), set(), []

    def hold(self, reading: HoldReading, ts: float) -> None:
        """Let a label hold from `ts` on, or end what holds; ignored when that began after `ts`.

        What a command says is never ignored. It takes a change back only while that is the newest.
        """
        held, undoing = self._held.get(reading.key), reading.undoing
        if undoing is not None:
            if held == undoing.before:
                self._set(reading.key, undoing.after)
                self._said.append(undoing)
            return
        if held is not None and ts < held.since:
            if reading.command is None:
                return
            ts = held.since
        after = None if reading.label is None else HeldLabel(reading.label, ts)
        self._set(reading.key, after)
        if reading.command is not None:
            self._said.append(HeldChange(reading.command, reading.key, ts, held, after))

    def _set(self, key: str, held: HeldLabel | None) -> None:
        self._changed.add(key)
        if held is None:
            self._held.pop(key, None)
        else:
            self._held[key] = held

    def labelled(self, reading: Reading, ts: float) -> Reading:
        """A reading of the event time `ts` with the label that held then, unless it has its own."""
        held = self._held.get(reading.key)
        if held is None or reading.label is not None or ts < held.since:
            return reading
        return replace(reading, label=held.label)

    def said(self) -> list[HeldChange]:
        """Return what commands have changed since the last call."""
        said, self._said = self._said, []
        return said

    def changes(self) -> dict[str, HeldLabel | None]:
        """Return what has changed since the last call; None for labels that no longer hold."""
        changed, self._changed = self._changed, set()
        return {key: self._held.get(key) for key in changed}


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
