"""What the trainer says of stored labels: those that others contradict, and a map of the samples."""

from __future__ import annotations

from dataclasses import dataclass

from edged.domain.training.message import Message


@dataclass(frozen=True)
class SuspectLabel(Message):
    """A label that a model contradicts which was fitted without it.

    `label` and `answer` are class indices, `label_confidence` and `confidence` what the model gives them.
    """

    offset: int
    label: int
    answer: int
    label_confidence: float
    confidence: float


@dataclass(frozen=True)
class SampleMap(Message):
    """Places of samples, `n` of each: `x` and `y` between −1 and 1, and what the same model answers."""

    offsets: tuple[int, ...]
    x: tuple[float, ...]
    y: tuple[float, ...]
    answers: tuple[int, ...]
    confidences: tuple[float, ...]


@dataclass(frozen=True)
class LabelReview(Message):
    """A review of the newest `labels` labels, the most suspect first; no sample's values are in it."""

    labels: int
    suspects: tuple[SuspectLabel, ...]
    points: SampleMap
