"""Section `labels`: which labels the device asks for."""

from __future__ import annotations

from pydantic import Field

from edged.config.values import Section, Share


class LabelsConfig(Section):
    """Which labels the device asks for, where they do not come by themselves."""

    request_share: Share = Field(
        0.0, description="label requests per sample (event `label_requested`); 0 for none"
    )
    request_random: Share = Field(0.3, description="part of the requests that is drawn at random")
    requests_per_day: int | None = Field(None, ge=1, description="most requests within 24 hours")
