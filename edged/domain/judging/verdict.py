"""The gate's verdict on a candidate, as the registry and MQTT hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edged.domain.model_files import FLOAT32, Form
from edged.domain.training.message import Message


@dataclass(frozen=True)
class Verdict(Message):
    """The decision, with every reason and number.

    `forgets` where only earlier regimes spoke against it; `form` is what an accepted model is served as.
    """

    accepted: bool
    reasons: tuple[str, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)
    forgets: bool = False
    form: Form = FLOAT32


def refuse(reason: str, **numbers: float) -> Verdict:
    """A verdict that needs no comparison."""
    return Verdict(False, (reason,), numbers)
