"""`edged fleet`: many devices on one broker, and what they learn together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from edged.cli.options import AsJson, Force, check_file, new_directory, print_json
from edged.errors import ConfigError

fleet_app = typer.Typer(
    help="Manage many devices on one broker, and let them improve one model.", no_args_is_help=True
)

Action = Literal["pause", "resume", "abandon", "approve"]
DeviceName = Annotated[str, Argument(metavar="DEVICE", help="device ID")]
FleetPath = Annotated[Path, Argument(metavar="CONFIG", help="configuration file of the fleet (YAML)")]


@fleet_app.command("ui")
def fleet_ui(
    broker_ws: Annotated[
        str, Option(metavar="URL", help="address of the broker for browsers: ws:// or wss://")
    ] = "",
    root: Annotated[str, Option(help="first level of topics")] = "edged",
    listen: Annotated[str, Option(help="loopback address and port of the page")] = "127.0.0.1:8090",
    out: Annotated[
        Path | None, Option(metavar="DIR", help="only write the page's files to this directory")
    ] = None,
    force: Force = False,
) -> None:
    """Show all devices on a broker in a browser, and send them commands.

    The browser connects to the broker itself, which needs a listener for WebSockets.
    The page asks for user and password and keeps them in memory only.
    Without --broker-ws the files of --out connect to the place that serves them.
    """
    import signal
    from contextlib import suppress

    from edged.fleet.page.server import PageServer, PageSettings, loopback, page_files, write_files

    settings = PageSettings(broker_ws, root)
    if out is not None:
        with new_directory(out, *page_files(settings), force=force) as folder:
            names = write_files(settings, folder)
        sys.stderr.write(f"{out}: {len(names)} files\n")
        return
    if not broker_ws:
        raise ConfigError(
            "the broker's address for browsers is missing",
            where="edged fleet ui",
            remedy="--broker-ws ws://host:9001; mosquitto has it with `listener 9001`, `protocol websockets`",
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with PageServer(loopback(listen), settings) as server, suppress(KeyboardInterrupt):
        sys.stderr.write(f"{server.url} shows the fleet; Ctrl-C ends it\n")
        sys.stderr.flush()
        server.serve_forever()


@fleet_app.command("run")
def fleet_run(config: FleetPath) -> None:
    """Coordinate a fleet in the foreground: open rounds, aggregate updates, evaluate and roll out models."""
    from edged.fleet.coordinator.coordinator import run

    run(config)


@fleet_app.command("status")
def fleet_status(config: FleetPath, as_json: AsJson = False) -> None:
    """Show the state of the coordinator on this machine, running or stopped, and its newest rounds."""
    from edged.fleet.config import load
    from edged.fleet.coordinator.status import lines_of, status_of

    report = status_of(load(config).dir)
    print_json(report.to_json()) if as_json else sys.stdout.write("\n".join(lines_of(report)) + "\n")


@fleet_app.command("round")
def fleet_round(
    action: Annotated[Action, Argument(help="pause, resume, abandon or approve")], config: FleetPath
) -> None:
    """Control a fleet's rounds: pause, resume, abandon one, or approve its model.

    abandon ends the round without its model: devices that have it try the model before it again.
    approve lets a model that waits for approval go to the next stage.
    It takes effect whether the coordinator runs or is started later.
    """
    from getpass import getuser

    from edged.fleet.config import load
    from edged.fleet.coordinator.control import instruct
    from edged.fleet.coordinator.status import status_of

    folder = load(config).dir
    report = status_of(folder)
    number, phase = report.status.round, report.status.phase
    control = instruct(folder, action, (number, phase), getuser())
    done = {"pause": "no further round is opened", "resume": "rounds are opened again"}
    order = control.order
    text = done.get(action) or f"{action}: round {number}, {phase}"
    sys.stdout.write(f"{text}{'' if report.running or order is None else '; when the coordinator runs'}\n")


@fleet_app.command("export")
def fleet_export(
    config: FleetPath,
    out: Annotated[Path, Argument(metavar="OUT.onnx", help="file to write")],
    bundle: Annotated[
        Path | None, Option(metavar="DIR", help="bundle of the devices, if `model` is not one")
    ] = None,
    force: Force = False,
) -> None:
    """Export the fleet's current model as one ONNX file; the coordinator can keep running."""
    from edged.fleet.config import load
    from edged.fleet.coordinator.models import export

    check_file(out, force=force)
    course = export(load(config), out, bundle)
    sys.stdout.write(f"{out}: version {course.version}, {course.standing.hash[:12]}\n")


@fleet_app.command("exclude")
def fleet_exclude(config: FleetPath, device: DeviceName) -> None:
    """Exclude a device from rounds: the coordinator does not ask it and refuses its updates and reports."""
    from edged.fleet.config import load
    from edged.fleet.coordinator.control import exclude

    control = exclude(load(config).dir, device)
    sys.stdout.write(f"excluded: {', '.join(control.excluded)}\n")


@fleet_app.command("include")
def fleet_include(config: FleetPath, device: DeviceName) -> None:
    """Let an excluded device take part in rounds again."""
    from edged.fleet.config import load
    from edged.fleet.coordinator.control import exclude

    control = exclude(load(config).dir, device, include=True)
    sys.stdout.write(f"excluded: {', '.join(control.excluded) or 'none'}\n")
