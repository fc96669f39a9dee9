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
    recent: int = Field(200, ge=1, description="newest labelled holdout samples that decide")
    min_holdout: int = Field(
        20, ge=1, description="with fewer labelled holdout samples a candidate is refused"
    )
    min_gain: float = Field(
        -0.05,
        description="what the candidate must be better by on the newest holdout; below 0 what it may be worse"
        " by: on 200 samples smaller differences are chance, and waiting for a gain costs more than they do",
    )
    max_regret: float = Field(
        0.1, ge=0.0, description="what it may lose on the older holdout, beyond its gain on the newest"
    )
    tolerance: float = Field(1e-4, gt=0, description="largest difference to the trainer's own outputs")
    latency: Duration = Field(0.05, gt=0, description="largest time for one prediction of a candidate")
    probation: int = Field(200, ge=0, description="labelled predictions watched after a swap; 0 for none")
    probation_drop: float = Field(0.1, ge=0, description="fall of live quality that rolls back")
