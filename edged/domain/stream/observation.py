"""What one message says, where a sample is not simply what one message holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edged.domain.stream.sample import LabelReading, LabelValue, Reading

if TYPE_CHECKING:
    from edged.domain.labels.held_labels import HeldChange


@dataclass(frozen=True, slots=True)
class Observation:
    """Values of some features of a key.

    `values` are pairs of a position among the features that messages bring and a number, NaN for one that the
    sensor says is missing; `ts` is Unix time in seconds, None when the message carries none.
    """

    key: str
    values: list[tuple[int, float]]
    ts: float | None = None
    label: LabelValue | None = None
    id: str | None = None
    refused_label: str | None = None  # why the label of the message was not taken


@dataclass(frozen=True, slots=True)
class HoldReading:
    """A label that holds for all samples of a key from `ts` on, until the next; None ends it.

    `command` says so, where that can be undone; `undoing` is a change that a command takes back instead.
    """

    key: str
    label: LabelValue | None
    ts: float | None = None
    command: str | None = None
    undoing: HeldChange | None = None


Seen = Reading | Observation | LabelReading | HoldReading
"""What a message says."""
