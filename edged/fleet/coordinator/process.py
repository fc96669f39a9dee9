"""`edged fleet run`: the coordinator as a process."""

from __future__ import annotations

import signal
from pathlib import Path

from edged import logs
from edged.fleet.config import load
from edged.fleet.coordinator.branches import FleetWithGroups, own_groups
from edged.fleet.coordinator.coordinator import Coordinator
from edged.fleet.coordinator.metrics import MetricsServer
from edged.fleet.page.server import loopback


def run(path: Path) -> None:
    """Coordinate as the configuration at `path` says, until the last round, SIGTERM or SIGINT."""
    config = load(path)
    logs.configure(config.log.level, config.log.format)
    coordinator: FleetWithGroups | Coordinator
    if own_groups(config):
        coordinator = FleetWithGroups(config)
        each = list(coordinator.coordinators.values())
    else:
        coordinator = Coordinator(config)
        each = [coordinator]
    listen = config.metrics.listen
    metrics = None if listen is None else MetricsServer(loopback(listen), each)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: coordinator.stop())
    try:
        coordinator.run()
    finally:
        if metrics is not None:
            metrics.close()
