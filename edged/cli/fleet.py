"""`edged fleet`: many devices on one broker, and what they learn together."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from edged.cli.json_output import AsJson, print_json
from edged.cli.outputs import Force, check_file, new_directory
from edged.errors import ConfigError

fleet_app = typer.Typer(
    help="Manage many devices on one broker, and let them improve one model.", no_args_is_help=True
)

Action = Literal["pause", "resume", "abandon", "skip"]
RolloutAction = Literal["approve", "abort", "status"]
DeviceName = Annotated[str, Argument(metavar="DEVICE", help="device ID")]
GroupName = Annotated[
    str, Option("--group", metavar="NAME", help="group with its own model; the fleet when absent")
]
FleetPath = Annotated[Path, Argument(metavar="CONFIG", help="configuration file of the fleet (YAML)")]


@fleet_app.command("ui")
def fleet_ui(
    broker: Annotated[
        str, Option(envvar="EDGED_BROKER", help="mqtt://host:port/root, or mqtts://")
    ] = "mqtt://localhost",
    broker_ws: Annotated[
        str | None, Option(metavar="URL", help="the browser connects to this ws:// or wss:// address itself")
    ] = None,
    root: Annotated[str | None, Option(help="first level of topics; edged when absent")] = None,
    listen: Annotated[str, Option(help="loopback address and port of the page")] = "127.0.0.1:8090",
    out: Annotated[
        Path | None, Option(metavar="DIR", help="only write the page's files to this directory")
    ] = None,
    ca: Annotated[Path | None, Option(help="CA certificates (PEM)")] = None,
    cert: Annotated[Path | None, Option(help="client certificate (PEM)")] = None,
    key: Annotated[Path | None, Option(help="key of the client certificate (PEM)")] = None,
    force: Force = False,
) -> None:
    """Show all devices on a broker in a browser, and send them commands.

    The page asks for user and password and keeps them in memory only.
    With --broker-ws the browser speaks to the broker itself; otherwise this command relays to --broker.
    """
    import secrets
    import signal
    from contextlib import suppress

    from edged.fleet.page.files import PageSettings, page_files, write_files
    from edged.fleet.page.relay import Relay
    from edged.fleet.page.server import PageServer, loopback
    from edged.mqtt.control_client import BrokerAddress

    direct = broker_ws is not None or out is not None
    if direct and (ca or cert or key):
        raise ConfigError(
            "a browser has its own certificates", where="--ca, --cert, --key", remedy="leave them out"
        )
    if out is not None:
        page = PageSettings(broker_ws or "", root or "edged")
        with new_directory(out, *page_files(page), force=force) as folder:
            names = write_files(page, folder)
        sys.stderr.write(f"{out}: {len(names)} files\n")
        return
    address = BrokerAddress.parse(broker, ca=ca, cert=cert, key=key)
    relay = None if direct else Relay(address)
    # With a certificate whoever gets to the relay has its rights: a code from the terminal opens it.
    code = secrets.token_hex(16) if relay is not None and cert is not None else None
    settings = PageSettings(broker_ws or "", root or ("edged" if direct else address.root), code is not None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with PageServer(loopback(listen), settings, relay, code) as server, suppress(KeyboardInterrupt):
        sys.stderr.write(f"{server.url} shows the fleet; Ctrl-C ends it\n")
        if code is not None:
            sys.stderr.write(f"code: {code}\n")
        sys.stderr.flush()
        server.serve_forever()


@fleet_app.command("run")
def fleet_run(config: FleetPath) -> None:
    """Coordinate a fleet in the foreground: open rounds, aggregate updates, evaluate and roll out models."""
    from edged.fleet.coordinator.process import run

    run(config)


@fleet_app.command("status")
def fleet_status(config: FleetPath, group: GroupName = "", as_json: AsJson = False) -> None:
    """Show the state of the coordinator on this machine, running or stopped, and its newest rounds."""
    from edged.fleet.config import load
    from edged.fleet.coordinator.status import lines_of, status_of

    report = status_of(load(config), group)
    print_json(report.to_json()) if as_json else sys.stdout.write("\n".join(lines_of(report)) + "\n")


@fleet_app.command("round")
def fleet_round(
    action: Annotated[Action, Argument(help="pause, resume, abandon or skip")],
    config: FleetPath,
    group: GroupName = "",
) -> None:
    """Control a fleet's rounds: pause, resume, abandon one, or skip to its next step.

    skip stops waiting: for more updates or reports, for the approval of a rollout, or for the next round.
    It takes effect whether the coordinator runs or is started later.
    """
    from getpass import getuser

    from edged.fleet.config import load
    from edged.fleet.coordinator.branches import folder_of
    from edged.fleet.coordinator.control import instruct
    from edged.fleet.coordinator.status import status_of

    found = load(config)
    report = status_of(found, group)
    number, phase = report.status.round, report.status.phase
    control = instruct(folder_of(found, group), action, (number, phase), getuser())
    done = {"pause": "no further round is opened", "resume": "rounds are opened again"}
    order = control.order
    text = done.get(action) or f"{action}: round {number}, {phase}"
    sys.stdout.write(f"{text}{'' if report.running or order is None else '; when the coordinator runs'}\n")


@fleet_app.command("rollout")
def fleet_rollout(
    action: Annotated[RolloutAction, Argument(help="approve, abort or status")],
    config: FleetPath,
    group: GroupName = "",
    as_json: AsJson = False,
) -> None:
    """Approve the next stage of a waiting rollout, abort the rollout, or show its progress.

    abort ends the round without its model: devices that have it try the model before it again.
    """
    from getpass import getuser

    from edged.fleet.config import load
    from edged.fleet.coordinator.branches import folder_of
    from edged.fleet.coordinator.control import instruct
    from edged.fleet.coordinator.status import rollout_lines, status_of

    found = load(config)
    report = status_of(found, group)
    status = report.status
    if action == "status":
        result = {} if status.rollout is None else status.rollout.to_json()
        lines = rollout_lines(status.rollout)
        print_json(result) if as_json else sys.stdout.write("\n".join(lines) + "\n")
        return
    order: Literal["approve", "abandon"] = "approve" if action == "approve" else "abandon"
    instruct(folder_of(found, group), order, (status.round, status.phase), getuser())
    later = "" if report.running else "; when the coordinator runs"
    sys.stdout.write(f"{action}: round {status.round}{later}\n")


@fleet_app.command("history")
def fleet_history(
    config: FleetPath,
    device: Annotated[str | None, Option(metavar="DEVICE", help="only entries of this device")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which device took which model when, and who approved or ordered what, oldest first."""
    from dataclasses import asdict

    from edged.fleet.config import load
    from edged.fleet.coordinator.branches import folder_of, own_groups
    from edged.fleet.coordinator.history import line_of, read_history

    found = load(config)
    entries = [
        entry
        for group in ("", *own_groups(found))
        for entry in read_history(folder_of(found, group))
        if device in (None, entry.device)
    ]
    entries.sort(key=lambda entry: entry.at)
    if as_json:
        print_json({"entries": [asdict(entry) for entry in entries]})
    else:
        sys.stdout.writelines(line_of(entry) + "\n" for entry in entries)


@fleet_app.command("export")
def fleet_export(
    config: FleetPath,
    out: Annotated[Path, Argument(metavar="OUT.onnx", help="file to write")],
    group: GroupName = "",
    bundle: Annotated[
        Path | None, Option(metavar="DIR", help="bundle of the devices, if `model` is not one")
    ] = None,
    force: Force = False,
) -> None:
    """Export the fleet's current model as one ONNX file; the coordinator can keep running."""
    from edged.fleet.config import load
    from edged.fleet.coordinator.export import export

    check_file(out, force=force)
    course = export(load(config), out, group=group, bundle=bundle)
    sys.stdout.write(f"{out}: version {course.version}, {course.standing.hash[:12]}\n")


@fleet_app.command("exclude")
def fleet_exclude(config: FleetPath, device: DeviceName) -> None:
    """Exclude a device from rounds: the coordinator does not ask it and refuses its updates and reports."""
    from edged.fleet.config import load
    from edged.fleet.coordinator.branches import exclude

    control = exclude(load(config), device)
    sys.stdout.write(f"excluded: {', '.join(control.excluded)}\n")


@fleet_app.command("include")
def fleet_include(config: FleetPath, device: DeviceName) -> None:
    """Let an excluded device take part in rounds again."""
    from edged.fleet.config import load
    from edged.fleet.coordinator.branches import exclude

    control = exclude(load(config), device, include=True)
    sys.stdout.write(f"excluded: {', '.join(control.excluded) or 'none'}\n")


@fleet_app.command("flower-app", hidden=True)
def fleet_flower_app(_: Annotated[Path | None, Argument()] = None, config: Path | None = None) -> None:  # noqa: ARG001
    """Say what has taken the place of this command."""
    raise ConfigError(
        "edged-flower has the app now",
        where="edged fleet flower-app",
        remedy='flwr run "$(edged-flower)": docs/fleet.md',
    )


@fleet_app.command("sim")
def fleet_sim(
    data: Annotated[Path, Argument(metavar="DATA", help="recorded stream with classes: .npz, .csv")],
    out: Annotated[Path | None, Option("--out", "-o", metavar="DIR", help="directory for the report")] = None,
    key: Annotated[
        str | None, Option(help="array that names each row's device; when absent, devices get skewed classes")
    ] = None,
    unseen: Annotated[int, Option(help="number of keys that take no part, to test the model on")] = 0,
    devices: Annotated[int, Option(help="number of devices, without --key", min=2)] = 20,
    alpha: Annotated[
        float, Option(help="skew of the classes, without --key; smaller is more skewed", min=0.01)
    ] = 0.5,
    kind: Annotated[
        str, Option(help="training, or statistics (sums from which the last layer is solved)")
    ] = "training",
    rounds: Annotated[int | None, Option(min=1, help="number of rounds; 20, with statistics 1")] = None,
    hidden: Annotated[
        int | None, Option(min=1, help="units of the hidden layer; 256, with statistics 192")
    ] = None,
    masks: Annotated[
        bool, Option("--masks", help="mask the updates, so that only their sum is known")
    ] = False,
    epochs: Annotated[int, Option(help="epochs of each device in a round", min=1)] = 5,
    learning_rate: Annotated[float, Option(min=1e-6)] = 0.1,
    batch_size: Annotated[int, Option(min=1)] = 32,
    optimizer: Annotated[str, Option(help="sgd, sgd_momentum or adamw")] = "sgd",
    clip_norm: Annotated[float, Option(help="maximum L2 norm of an update", min=1e-6)] = 1.0,
    noise: Annotated[float, Option(help="Gaussian noise on an update, in units of --clip-norm", min=0)] = 0.0,
    proximal: Annotated[float, Option(help="mu of FedProx", min=0)] = 0.0,
    dynamic: Annotated[float, Option(help="alpha of FedDyn", min=0)] = 0.0,
    step: Annotated[float, Option(help="step of int8 values; 0: the finest", min=0)] = 0.5,
    reduce: Annotated[str, Option(help="mean, trimmed_mean or median")] = "mean",
    trim: Annotated[float, Option(help="share that trimmed_mean cuts at either end")] = 0.1,
    opposed: Annotated[
        str, Option(help="devices whose updates oppose the others': count or leave_out")
    ] = "count",
    poison: Annotated[float, Option(help="share of malicious devices", min=0, max=1)] = 0.0,
    attack: Annotated[str, Option(help="what malicious devices do: flip, scale or noise")] = "flip",
    personal: Annotated[
        list[str] | None, Option(metavar="GLOB", help="parameters that stay on the device")
    ] = None,
    group: Annotated[
        list[str] | None, Option(metavar="GLOB", help="group with its own model: devices by name")
    ] = None,
    central: Annotated[bool, Option(help="also train one model on all rows")] = True,
    alone: Annotated[bool, Option(help="also train each device alone")] = True,
    seed: Annotated[int, Option()] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a fleet on parts of a recording, with real engines, broker and coordinator."""
    from edged.fleet.simulation.report import lines_of, run
    from edged.fleet.simulation.simulation import SimulationPlan

    which, one = SimulationPlan.kind_of(kind), kind == "statistics"
    plan = SimulationPlan(
        data, key, devices, alpha, unseen, rounds or (1 if one else 20), epochs, learning_rate,
        batch_size, proximal=proximal, dynamic=dynamic, step=step, reduce=reduce, trim=trim, opposed=opposed,
        poison=poison, attack=SimulationPlan.attack_of(attack), optimizer=optimizer,
        personal=tuple(personal or ()), central=central, seed=seed, clip_norm=clip_norm, noise=noise,
        groups=tuple(group or ()), alone=alone, kind=which, masks=masks,
        hidden=hidden or (192 if one else 256),
    )  # fmt: skip
    replacing = nullcontext() if out is None else new_directory(out, "report.json", "index.html", force=force)
    with replacing as folder:
        report = run(plan, folder)
    print_json(report.to_json()) if as_json else sys.stdout.write("\n".join(lines_of(report)) + "\n")
