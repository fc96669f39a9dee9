"""Section `anomaly`: what counts as unusual, and when it is an alarm."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from edged.config.values import Duration, Section
from edged.domain.stream.anomaly import AnomalyRules


class AnomalyConfig(Section):
    """What counts as unusual, and when it is an alarm; for streams with `target: reconstruct`."""

    false_alarms: Annotated[float, Field(gt=0.0, le=0.05)] = Field(
        1e-3, description="share of normal samples whose score may pass the threshold"
    )
    calibrate: int = Field(
        100, ge=50, description="samples that the first trained model answers before there is a threshold"
    )
    window: int = Field(2000, ge=100, description="newest normal scores whose spread the threshold follows")
    level: int = Field(
        400,
        ge=100,
        description="newest normal scores whose mean it follows: what changes more slowly is no anomaly",
    )
    raise_after: int = Field(
        5, ge=1, description="an alarm begins when so many of the newest `of` samples of a key are unusual"
    )
    of: int = Field(10, ge=1, description="see raise_after; it ends when none of them is")
    accept_after: Duration | None = Field(
        None,
        gt=0,
        description="an alarm that has stood for this long becomes the new normal; null: until the command"
        " `accept`",
    )

    @model_validator(mode="after")
    def _within(self) -> AnomalyConfig:
        if self.raise_after > self.of:
            raise ValueError(
                f"raise_after {self.raise_after} is more than of {self.of}: no alarm could begin"
            )
        if self.calibrate > min(self.level, self.window):
            raise ValueError(f"calibrate {self.calibrate} is more than level or window: lower it")
        return self

    def rules(self) -> AnomalyRules:
        """For the detector."""
        return AnomalyRules(
            self.false_alarms,
            self.calibrate,
            self.window,
            self.level,
            self.raise_after,
            self.of,
            self.accept_after,
        )
