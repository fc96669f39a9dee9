"""Section `outbox`: what waits on the disk while the broker is away."""

from __future__ import annotations

from pydantic import Field

from edged.config.values import Duration, Section, Size


class OutboxConfig(Section):
    """What waits on the disk while the broker is away, and is sent when it is back."""

    enabled: bool = Field(
        True,
        description="keep events, metrics, weights and must-deliver predictions until the broker has them",
    )
    max_bytes: Size = Field(
        64 * 1024**2,
        ge=1024**2,
        description="cap of its files; a message may have a 16th of it, and 1MiB, at most",
    )
    max_age: Duration = Field(7 * 86400.0, gt=0, description="messages that waited longer are given up")
    rate: float = Field(
        50.0, gt=0, le=100_000, description="messages a second that are sent late, so that live ones go first"
    )
