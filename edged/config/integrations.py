"""Sections `discovery` and `sparkplug`: other systems in which the device appears."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edged.config.values import Section


class DiscoveryConfig(Section):
    """Home Assistant finds the device by itself: its figures, and buttons for commands."""

    enabled: bool = Field(False, description="announce the device; when turned off again it is taken back")
    prefix: str = Field(
        "homeassistant", description="first level of Home Assistant's own topics", pattern=r"^[^#+/\s]+$"
    )
    name: str | None = Field(
        None, min_length=1, description="what the device is called there; its id when absent"
    )


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
