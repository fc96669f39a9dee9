"""Section `sparkplug`: the daemon as an edge node of Sparkplug B."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edged.config.values import Section

Level = Annotated[str, Field(pattern=r"^[^+/#\x00]+$", max_length=256)]


class SparkplugConfig(Section):
    """The daemon as an edge node of Sparkplug B, over a connection of its own; off when absent."""

    group: Level = Field(description="group id")
    node: Level | None = Field(None, description="edge node id; the device's when absent")
    history: int = Field(
        10_000,
        ge=0,
        le=1_000_000,
        description="changes kept while the broker is away, sent as historical; beyond, the oldest go",
    )
