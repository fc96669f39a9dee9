"""Section `drift`: what is watched for drift, and how sensitively."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from edged.config.values import Section
from edged.domain.drift import DriftRules


class DriftConfig(Section):
    """What is watched for drift, and how sensitively."""

    errors: bool = Field(True, description="watch the errors of predictions whose labels have come")
    confidence: bool = Field(True, description="watch how sure predictions are; for classes")
    inputs: bool = Field(True, description="watch each feature against its own past")
    detector: Literal["adwin_correlated", "adwin", "page_hinkley", "ddm", "hddm_w"] = Field(
        "adwin_correlated", description="what watches the errors"
    )
    delta: float | None = Field(
        None, gt=0, lt=1, description="confidence of the adwin kinds: smaller is quieter; 0.002 when absent"
    )
    cooldown: int = Field(2000, ge=0, description="samples of silence after a drift, so that it is told once")

    train: bool = Field(
        True, description="a drift of the errors, or a sudden fall of live quality, starts a run"
    )

    @model_validator(mode="after")
    def _delta_of_adwin(self) -> DriftConfig:
        if self.delta is not None and not self.detector.startswith("adwin"):
            raise ValueError(
                f"delta belongs to adwin and adwin_correlated, not to {self.detector}: remove it"
            )
        return self

    def rules(self) -> DriftRules:
        """For the detectors."""
        return DriftRules(self.detector, self.delta, self.cooldown, self.errors, self.confidence, self.inputs)
