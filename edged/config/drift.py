"""Section `drift`: what is watched for drift, and how sensitively."""

from __future__ import annotations

from pydantic import Field

from edged.config.values import Section
from edged.domain.drift import DriftRules


class DriftConfig(Section):
    """What is watched for drift, and how sensitively."""

    errors: bool = Field(True, description="watch the errors of predictions whose labels have come")
    confidence: bool = Field(True, description="watch how sure predictions are; for classes")
    inputs: bool = Field(True, description="watch each feature against its own past")
    delta: float | None = Field(
        None, gt=0, lt=1, description="confidence of the errors' detector: smaller is quieter; else 0.002"
    )
    cooldown: int = Field(2000, ge=0, description="samples of silence after a drift, so that it is told once")

    train: bool = Field(
        True, description="a drift of the errors, or a sudden fall of live quality, starts a run"
    )

    def rules(self) -> DriftRules:
        """For the detectors."""
        return DriftRules(
            delta=self.delta,
            cooldown=self.cooldown,
            errors=self.errors,
            confidence=self.confidence,
            inputs=self.inputs,
        )
