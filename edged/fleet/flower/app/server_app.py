"""The ServerApp: edged's coordinator, with Flower's grid in the place of a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flwr.serverapp import Grid, ServerApp

from edged.fleet.flower.server_app import coordinate

if TYPE_CHECKING:
    from flwr.app import Context

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Coordinate as the file says that the run's configuration names as `fleet-config`."""
    coordinate(grid, Path(str(context.run_config["fleet-config"])))
