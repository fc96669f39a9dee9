"""A coordinator inside of Flower's ServerApp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edged import logs
from edged.fleet.coordinator.config import load
from edged.fleet.coordinator.coordinator import Coordinator
from edged.fleet.flower.channel import FlowerChannel
from edged.fleet.flower.compat import require

if TYPE_CHECKING:
    from pathlib import Path


def coordinate(grid: Any, path: Path) -> None:
    """Coordinate the nodes of `grid` as the configuration at `path` says, until the last round.

    A run of Flower's that ends with its process is gone; the next one goes on here in the same round.

    Raises
    ------
    EdgedError
        As `edged fleet run` does.
    """
    require()
    config = load(path)
    logs.configure(config.log.level, config.log.format)
    Coordinator(config, channel=FlowerChannel(grid, config)).run()
