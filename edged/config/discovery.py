"""Section `discovery`: announcing the device to Home Assistant."""

from __future__ import annotations

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
