"""Section `gate`: when a candidate may become champion, and when it must go again."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edged.config.values import Duration, Section


class GateConfig(Section):
    """When a candidate may become champion, and when it must go again."""

    holdout: Annotated[float, Field(gt=0.0, le=0.5)] = Field(
        0.05, description="share of samples kept for judging, never trained on"
    )
    recent: int = Field(
        60, ge=1, description="newest labelled holdout samples that decide, the newer half of them first"
    )
    min_holdout: int = Field(
        20, ge=1, description="with fewer labelled holdout samples a candidate is refused"
    )
    min_gain: float = Field(
        0.0,
        description="above 0: what the candidate must be better by; below: what it may lose beyond chance",
    )
    significance: float = Field(
        0.1,
        gt=0,
        le=0.5,
        description="a candidate is refused when chance explains its losses with less probability than this",
    )
    max_regret: float = Field(
        0.02, ge=0.0, description="what it may lose on each earlier regime, beyond chance and its gain"
    )
    recall: bool = Field(
        True, description="try the models of earlier regimes on the newest labels: one of them may be back"
    )
    tolerance: float = Field(1e-4, gt=0, description="largest difference to the trainer's own outputs")
    latency: Duration = Field(0.05, gt=0, description="largest time for one prediction of a candidate")
    suspect_labels: bool = Field(
        True, description="refuse candidates and pause training while no model can explain the labels"
    )
    timeout: Duration = Field(
        60.0, gt=0, description="longest time for verifying, for judging and for loading a candidate"
    )
    probation: int = Field(200, ge=0, description="labelled predictions watched after a swap; 0 for none")
    probation_drop: float = Field(0.1, ge=0, description="fall of live quality that rolls back")
    probation_time: Duration = Field(
        7 * 86400.0, gt=0, description="a probation for which too few labels come ends after this, unproven"
    )
