"""`edged fleet run`: one coordinator until it ends, or until it is told to."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from edged import logs
from edged.fleet.coordinator.config import load
from edged.fleet.coordinator.coordinator import Coordinator

if TYPE_CHECKING:
    from pathlib import Path


def run(path: Path) -> None:
    """Coordinate as the configuration at `path` says, until the last round, SIGTERM or SIGINT."""
    config = load(path)
    logs.configure(config.log.level, config.log.format)
    coordinator = Coordinator(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: coordinator.stop())
    coordinator.run()
