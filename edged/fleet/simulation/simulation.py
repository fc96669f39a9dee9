"""`edged fleet sim`: whole devices of the daemon's pipeline, the real coordinator and a real broker.

Each device has a part of one recording. It trains in rounds and judges the fleet's models by its own gate, as
a daemon does; only its trainer runs in this process.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from edged import logs
from edged.clock import SystemClock
from edged.config import MqttConfig
from edged.device.fleet_member.member import Member
from edged.device.fleet_member.transports import MqttTransport
from edged.domain.federated.messages import FleetTopics
from edged.domain.messages.encoding import json_ready
from edged.domain.stream.schema import Schema
from edged.domain.training.message import Message
from edged.errors import ConfigError, EdgedError, StorageError
from edged.fleet.config import CoordinatorConfig, TrainSection
from edged.fleet.coordinator.coordinator import Coordinator
from edged.fleet.coordinator.journal import read_lineage
from edged.fleet.simulation.devices import (
    FLEET,
    PooledHost,
    Recording,
    VirtualDevice,
    by_key,
)
from edged.mqtt.client.session import Session
from edged.storage.files.atomic import scratch
from edged.storage.recordings import read_stream
from edged.workbench.demo.broker import EmbeddedBroker, embedded_broker

if TYPE_CHECKING:
    Index = NDArray[np.int64]

PATIENCE = 600.0  # seconds that a round may take


@dataclass(frozen=True)
class SimulationPlan:
    """Settings of a simulation: how the rows are divided, how devices train, how their updates become one."""

    data: Path  # a recording with classes
    key: str = "key"  # its array that names each row's device
    unseen: int = 0  # keys that take no part: the fleet's model is tested on their rows
    rounds: int = 20
    epochs: int = 5
    learning_rate: float = 0.1
    clip_norm: float = TrainSection().clip_norm
    reduce: str = "mean"
    trim: float = 0.1
    hidden: int = 256
    masks: bool = False  # whether updates come under masks
    seed: int = 0


@dataclass(frozen=True)
class RoundFigures(Message):
    """One round: accuracy of its model on `unseen` rows and over devices, and of what they then serve."""

    round: int
    accepted: bool
    seconds: float
    updates: int
    unseen: float | None
    mean: float | None
    worst: float | None
    served_mean: float | None
    served_worst: float | None


@dataclass(frozen=True)
class SimulationReport(Message):
    """A simulation: its settings, and its rounds; `update_bytes` is the mean size of an update as sent."""

    data: str
    plan: Mapping[str, Any]
    devices: int
    seconds: float
    update_bytes: float | None
    rounds: tuple[RoundFigures, ...]


def simulate(plan: SimulationPlan, on_progress: Callable[[str], Any] = lambda _: None) -> SimulationReport:
    """Run a simulation, and return its figures.

    Raises ConfigError when the data cannot be divided as asked; UnavailableError when no broker is installed;
    EdgedError when a round does not end.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="edged-fleetsim-") as name, scratch(), ExitStack() as stack:
        folder = Path(name)
        broker = stack.enter_context(embedded_broker())
        recording, parts, unseen = _divided(plan, folder)
        config = _configuration(plan, len(parts), broker, folder)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a device has a dozen files open
        devices = []
        for number, (key, rows) in enumerate(parts.items()):
            own = folder / "devices" / str(number)
            own.mkdir(parents=True)
            devices.append(VirtualDevice(_level(key), own, recording, rows, plan.seed + number))
            stack.callback(devices[-1].close)
        on_progress(f"{len(devices)} devices, {plan.rounds} rounds")
        coordinator = Coordinator(config)
        with _members(devices, broker):
            _coordinate(coordinator, plan.rounds, on_progress)
        rounds = []
        for entry in read_lineage(folder / "coordinator"):
            tried = [device.found[entry.model] for device in devices if entry.model in device.found]
            model, served = [one[0] for one in tried], [one[1] for one in tried]
            asked = recording.model(coordinator.journal.weights(entry.model), folder / "asked.onnx")
            rounds.append(
                RoundFigures(
                    entry.round, entry.accepted, entry.seconds,
                    sum(entry.round in device.sent for device in devices),
                    recording.accuracy(asked, unseen) if len(unseen) else None,
                    _mean(model), min(model, default=None), _mean(served), min(served, default=None),
                )
            )  # fmt: skip
    sizes = [size for device in devices for size in device.sent.values()]
    settings = {name: value for name, value in vars(plan).items() if name != "data"}
    seconds = time.monotonic() - started
    return SimulationReport(plan.data.name, settings, len(devices), seconds, _mean(sizes), tuple(rounds))


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _divided(plan: SimulationPlan, folder: Path) -> tuple[Recording, dict[str, Index], Index]:
    """Return the recording, the rows of each device, and the rows of keys that take no part."""
    from edged.bundles.build import build
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics

    recorded = read_stream(plan.data, key=plan.key)
    y = recorded.y
    if y is None or y.ndim != 1 or not (np.isfinite(y).all() and (y == np.rint(y)).all() and y.min() >= 0):
        raise ConfigError("a fleet is simulated on classes: one label for each row", where=str(plan.data))
    classes = y.astype(np.int64)
    count, width = int(classes.max()) + 1, recorded.x.shape[1]
    bundle = build(
        mlp(width, count, (plan.hidden,)), folder / "bundle", loss="cross_entropy", engine="portable",
        optimizer="sgd", standardise=Statistics.identity(width), seed=plan.seed,
    )  # fmt: skip
    schema = Schema((), width, "classify", tuple(map(str, range(count))))
    recording = Recording(bundle, schema, recorded.x, classes)
    if recorded.key is None:
        raise ConfigError(f"has no array {plan.key}", where=str(plan.data), remedy="name another with --key")
    found = by_key(recorded.key)
    if plan.unseen >= len(found):
        raise ConfigError(f"there are {len(found)} keys", where="--unseen", remedy="name fewer")
    apart = list(found)[:: -(len(found) // plan.unseen)][: plan.unseen] if plan.unseen else []
    rows = [found.pop(key) for key in apart]
    return recording, found, np.concatenate(rows) if rows else np.empty(0, np.int64)


def _level(key: str) -> str:
    """Return a key as the name of a device."""
    return "u-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in key)[:60]


def _configuration(
    plan: SimulationPlan, devices: int, broker: EmbeddedBroker, folder: Path
) -> CoordinatorConfig:
    values: dict[str, Any] = {
        "fleet": FLEET, "model": folder / "bundle", "dir": folder / "coordinator", "keep": plan.rounds + 2,
        "mqtt": {"host": broker.host, "port": broker.port},
        "round": {
            "devices": devices, "over": 1.0, "quorum": 0.6, "deadline": PATIENCE / 2, "window": 0.2,
            "rounds": plan.rounds,
        },
        "choose": {"everyone": True},
        "train": {
            "epochs": plan.epochs, "learning_rate": plan.learning_rate, "clip_norm": plan.clip_norm,
        },
        "admit": {"max_norm": 20.0},
        "reduce": {"how": plan.reduce, "trim": plan.trim},
        "masks": {"enabled": plan.masks},
        "gate": {"stages": [1.0], "wait": PATIENCE / 2, "mean": 1.0, "worst": 10.0},
    }  # fmt: skip
    try:
        return CoordinatorConfig.model_validate(values)
    except ValidationError as problem:
        first = problem.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "edged fleet sim"
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigError(said, where=key, remedy="change the options") from None


@contextmanager
def _members(devices: Sequence[VirtualDevice], broker: EmbeddedBroker) -> Iterator[None]:
    """Let devices take part in the fleet, each over a connection of its own."""
    workers = max(1, len(os.sched_getaffinity(0)) - 1)
    with ThreadPoolExecutor(workers, thread_name_prefix="device") as pool, ExitStack() as stack:
        mqtt = MqttConfig(host=broker.host, port=broker.port)
        topics = FleetTopics(FLEET, mqtt.root)
        for device in devices:
            session = Session(mqtt, client_id=f"edged-sim-{device.name}", clean=True)
            member = Member(
                device.name, device.fleet, topics=topics,
                transport=MqttTransport(session), work=device,
                host=PooledHost(pool), state=device.folder, clock=SystemClock(),
            )  # fmt: skip
            member.start()
            session.start()
            stack.callback(session.stop, 1.0)
            stack.callback(member.stop)
        try:
            yield
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _coordinate(coordinator: Coordinator, rounds: int, on_progress: Callable[[str], Any]) -> None:
    """Run the coordinator until its last round has ended; raises what it raises."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            coordinator.run()
        except BaseException as problem:  # noqa: BLE001  it is raised again below
            failed.append(problem)

    thread = threading.Thread(target=run, name="coordinator")
    thread.start()
    reported, since = 0, time.monotonic()
    while thread.is_alive():
        thread.join(0.5)
        if coordinator.course.number > reported:
            reported, since = coordinator.course.number, time.monotonic()
            on_progress(f"round {reported} of {rounds}")
        if time.monotonic() - since > PATIENCE:
            coordinator.stop()
            thread.join()
            raise EdgedError(f"round {reported} has not ended after {PATIENCE:g} s", where="fleet sim")
    if failed:
        raise failed[0]


# ---- the report ------------------------------------------------------------------------------


def run(plan: SimulationPlan, out: Path | None) -> SimulationReport:
    """Simulate, and write the report to `out` as JSON; StorageError where it cannot be written."""
    logs.configure("error", "console")
    report = simulate(plan, lambda text: sys.stderr.write(f"{text}\n"))
    if out is not None:
        try:
            out.write_text(json.dumps(json_ready(report.to_json()), indent=1) + "\n", encoding="utf-8")
        except OSError as problem:
            raise StorageError(f"cannot be written: {problem.strerror}", where=str(out)) from problem
    return report


def lines_of(report: SimulationReport) -> list[str]:
    """Format the report for people: a line for each round, and what an update takes."""
    lines = [f"{report.devices} devices, {len(report.rounds)} rounds, {report.seconds:.0f} s"]
    for one in report.rounds:
        parts = [
            f"{name} {value:.1%}" + ("" if worst is None else f" (worst {worst:.1%})")
            for name, value, worst in (
                ("model", one.mean, one.worst),
                ("served", one.served_mean, one.served_worst),
                ("devices that took no part", one.unseen, None),
            )
            if value is not None
        ]
        outcome = "accepted" if one.accepted else "rejected"
        lines.append(f"round {one.round}: {outcome}, {one.updates} updates: {', '.join(parts)}")
    if report.update_bytes is not None:
        lines.append(f"an update: {report.update_bytes:,.0f} bytes")
    return lines
