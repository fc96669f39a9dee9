"""The ServerApp: edged's coordinator, with Flower's grid in the place of a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp import Grid, ServerApp

from edged import logs
from edged.fleet.config import load
from edged.fleet.coordinator.coordinator import Coordinator
from edged_flower.channel import FlowerChannel
from edged_flower.compat import require

if TYPE_CHECKING:
    from flwr.app import Context

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Coordinate as the file says that the run's configuration names as `fleet-config`.

    A run of Flower's that ends with its process is gone; the next one goes on here in the same round.
    """
    require()
    config = load(Path(str(context.run_config["fleet-config"])))
    logs.configure(config.log.level)
    Coordinator(config, channel=FlowerChannel(grid, config)).run()
