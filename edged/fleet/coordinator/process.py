"""`edged fleet run`: the coordinator as a process."""

from __future__ import annotations

import signal
from pathlib import Path

from edged import logs
from edged.fleet.config import load
from edged.fleet.coordinator.branches import FleetWithGroups, own_groups
from edged.fleet.coordinator.coordinator import Coordinator


def run(path: Path) -> None:
    """Coordinate as the configuration at `path` says, until the last round, SIGTERM or SIGINT."""
    config = load(path)
    logs.configure(config.log.level, config.log.format)
    coordinator = FleetWithGroups(config) if own_groups(config) else Coordinator(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: coordinator.stop())
    coordinator.run()
