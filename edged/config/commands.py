"""Section `commands`: which commands over MQTT are carried out."""

from __future__ import annotations

from pydantic import Field

from edged.config.values import Duration, Section


class CommandsConfig(Section):
    """Which commands over MQTT are carried out."""

    max_age: Duration | None = Field(
        86400.0, gt=0, description="a command whose `ts` is older is refused; null for any age"
    )
    rate: float = Field(50.0, gt=0, le=10_000, description="commands a second; what exceeds it is refused")
    burst: int = Field(200, ge=1, le=100_000, description="commands that may come at once")
    keep: int = Field(
        1000, ge=10, le=1_000_000, description="commands that are remembered, so that none is done twice"
    )
    keep_for: Duration = Field(30 * 86400.0, gt=0, description="how long they are remembered")
