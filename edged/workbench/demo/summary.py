"""What the demo has come to, as JSON and for the screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edged.domain.training.message import Message


@dataclass(frozen=True)
class MachinesSummary(Message):
    """Accuracy of several machines: `mean` over them and that of the `worst`."""

    count: int
    frozen: Mapping[str, float]
    adapted: Mapping[str, float]


@dataclass(frozen=True)
class DemoSummary(Message):
    """What the demo has come to: counts, and the figures of the adapted and the frozen model."""

    samples: int
    predictions: int
    dropped: int
    duplicated: int
    trainings: int
    swaps: int
    rollbacks: int
    frozen: Mapping[str, float]
    adapted: Mapping[str, float]
    engine: str
    broker: str
    seconds: float
    warnings: tuple[str, ...]
    machines: MachinesSummary | None = None
