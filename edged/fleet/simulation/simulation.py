"""A whole simulation: partition, broker, coordinator, devices, and what came of it."""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from pydantic import ValidationError

from edged.domain.federated.audience import DeviceFacts, GroupRule, group_of
from edged.domain.federated.settings import RoundSettings
from edged.domain.stream.schema import Schema
from edged.errors import ConfigError, EdgedError
from edged.fleet.config import CoordinatorConfig, StatisticsSection, TrainSection
from edged.fleet.coordinator.branches import GROUPS, FleetWithGroups
from edged.fleet.coordinator.coordinator import Coordinator
from edged.fleet.coordinator.journal import read_lineage
from edged.fleet.rules.statistics import SolvedHead
from edged.fleet.simulation.device_pool import DevicePool
from edged.fleet.simulation.figures import ClosedFormFigures, ComparedFigures, SimulationReport, measured
from edged.fleet.simulation.partition import by_key, dirichlet
from edged.fleet.simulation.shared import FLEET, SharedSetup
from edged.fleet.simulation.virtual_device import VirtualDevice
from edged.storage.files.atomic import scratch
from edged.storage.recordings import read_stream
from edged.workbench.demo.broker import EmbeddedBroker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.training.weight_deltas import Weights
    from edged.fleet.simulation.attacks import Attack
    from edged.storage.models.bundles import Bundle

PATIENCE = 600.0  # seconds that a round may take
FILES = 16  # open files of a device, at most


@dataclass(frozen=True)
class SimulationPlan:
    """Settings of a simulation: how the rows are divided, how devices train, how their updates become one."""

    data: Path  # a recording with classes
    key: str | None = None  # its array that names each row's device; None: skewed over `devices` by `alpha`
    devices: int = 20
    alpha: float = 0.5
    unseen: int = (
        0  # of the keys, every n-th, so that so many take no part: the model is asked about their rows
    )
    rounds: int = 20
    epochs: int = 5
    learning_rate: float = 0.1
    batch_size: int = 32
    clip_norm: float = TrainSection().clip_norm  # as `edged fleet run`
    noise: float = 0.0  # on an update, in units of clip_norm
    proximal: float = 0.0
    dynamic: float = 0.0
    step: float = 0.5
    reduce: str = "mean"
    trim: float = 0.1
    opposed: str = "count"
    poison: float = 0.0  # share of the devices that do harm
    attack: Attack = "flip"
    hidden: int = 256
    optimizer: str = "sgd"
    personal: tuple[str, ...] = ()  # patterns of layers that stay on devices
    central: bool = True  # whether one model is trained on all rows of the devices together, to compare
    central_epochs: int = 20
    seed: int = 0
    groups: tuple[str, ...] = ()  # patterns of devices' names: each makes a group with a model of its own
    alone: bool = True  # whether each device trains for itself, to compare
    kind: Literal["training", "statistics"] = "training"
    masks: bool = False  # whether updates come under masks

    def __post_init__(self) -> None:
        if self.kind == "statistics" and self.poison:
            raise ConfigError(
                "attacks are on updates", where="--poison", remedy="leave out --kind statistics"
            )
        if self.masks and self.groups:
            raise ConfigError(
                "a group may have fewer devices than masks need", where="--masks", remedy="leave out --group"
            )

    @staticmethod
    def kind_of(name: str) -> Literal["training", "statistics"]:
        """A kind of rounds by its name; ConfigError where there is none."""
        if name not in ("training", "statistics"):
            raise ConfigError(
                f"there are no rounds of {name!r}", where="--kind", remedy="training or statistics"
            )
        return cast("Literal['training', 'statistics']", name)

    @staticmethod
    def attack_of(name: str) -> Attack:
        """An attack by its name; ConfigError where there is none."""
        if name not in ("flip", "scale", "noise"):
            raise ConfigError(f"there is no attack {name!r}", where="--attack", remedy="flip, scale or noise")
        return cast("Attack", name)


def simulate(plan: SimulationPlan, on_progress: Callable[[str], Any] = lambda _: None) -> SimulationReport:
    """Run a simulation, and report what came of it.

    Raises ConfigError when the data cannot be divided as asked; UnavailableError when no broker is installed;
    EdgedError when the fleet comes to a stop.
    """
    started = time.monotonic()
    with _scratch_folder() as folder, ExitStack() as stack:
        bench, parts, unseen = _divided(plan, folder)
        devices = _devices(plan, bench, parts, folder, stack)
        _apart(plan, devices)
        on_progress(f"{len(devices)} devices, {len(bench.initial())} tensors, {plan.rounds} rounds")
        with EmbeddedBroker() as broker:
            models = _fleet(plan, devices, (broker.host, broker.port), folder, on_progress)
        seconds = time.monotonic() - started
        apart, lineage = _apart(plan, devices), read_lineage(folder / "coordinator")
        own, asked = apart.pop("", []), folder / "asked.onnx"
        figures = measured(bench, own, lineage, models, unseen, asked)
        groups = {
            name: measured(
                bench, members, read_lineage(folder / "coordinator" / GROUPS / name), models, unseen, asked
            )
            for name, members in apart.items()
        }
        alone = central = closed_form = None
        if plan.alone:
            on_progress("training each device alone, to compare")
            alone = _alone(plan, bench, devices, unseen, folder)
        if plan.central:
            on_progress("training one model on all rows, to compare")
            central = _central(plan, bench, devices, unseen, folder)
        if plan.kind == "statistics" and lineage:
            closed_form = _closed_form(bench, own, models[lineage[-1].model], unseen, folder)
    return SimulationReport(
        data=plan.data.name,
        plan={name: value for name, value in vars(plan).items() if name != "data"},
        devices=len(devices),
        poisoned=tuple(device.name for device in devices if device.attack),
        seconds=seconds,
        figures=figures,
        groups=groups,
        alone=alone,
        central=central,
        closed_form=closed_form,
    )


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    """A directory that goes with the simulation; nothing in it need outlive a power cut."""
    with tempfile.TemporaryDirectory(prefix="edged-fleetsim-") as name, scratch():
        yield Path(name)


def _divided(
    plan: SimulationPlan, folder: Path
) -> tuple[SharedSetup, dict[str, NDArray[np.int64]], NDArray[np.int64]]:
    """The bench, the rows of each device, and rows of those that take no part."""
    recorded = read_stream(plan.data, key=plan.key or "key")
    y = recorded.y
    if y is None or y.ndim != 1 or not (np.isfinite(y).all() and (y == np.rint(y)).all() and y.min() >= 0):
        raise ConfigError("a fleet is simulated on classes: one label for each row", where=str(plan.data))
    classes = y.astype(np.int64)
    count, width = int(classes.max()) + 1, recorded.x.shape[1]
    schema = Schema((), width, "classify", tuple(map(str, range(count))))
    bench = SharedSetup(_bundle(plan, width, count, folder), schema, recorded.x, classes)
    if plan.key is None:
        return bench, dirichlet(classes, plan.devices, plan.alpha, plan.seed), np.empty(0, np.int64)
    if recorded.key is None:
        raise ConfigError(f"has no array {plan.key}", where=str(plan.data), remedy="name another with --key")
    found = by_key(recorded.key)
    if plan.unseen >= len(found):
        raise ConfigError(f"there are {len(found)} keys", where="--unseen", remedy="name fewer")
    apart = list(found)[:: -(len(found) // plan.unseen)][: plan.unseen] if plan.unseen else []
    rows = [found.pop(key) for key in apart]
    return bench, found, np.concatenate(rows) if rows else np.empty(0, np.int64)


def _bundle(plan: SimulationPlan, width: int, classes: int, folder: Path) -> Bundle:
    from edged.bundles.build import build
    from edged.bundles.graph.templates import mlp
    from edged.bundles.source.standardise import Statistics

    return build(
        mlp(width, classes, (plan.hidden,)), folder / "bundle", loss="cross_entropy", engine="portable",
        optimizer=plan.optimizer, standardise=Statistics.identity(width), seed=plan.seed,
    )  # fmt: skip


def _devices(
    plan: SimulationPlan, bench: SharedSetup, parts: Mapping[str, NDArray[np.int64]], folder: Path,
    stack: ExitStack,
) -> list[VirtualDevice]:  # fmt: skip
    """The devices, which `stack` closes."""
    _let_open(FILES * len(parts))
    names, count = list(parts), round(plan.poison * len(parts))
    harmful = {names[i * len(names) // count] for i in range(count)}  # evenly
    made = []
    for number, (name, rows) in enumerate(parts.items()):
        own = folder / "devices" / str(number)
        own.mkdir(parents=True)
        attack = plan.attack if name in harmful else None
        device = VirtualDevice(_level(name), own, bench, rows, seed=plan.seed + number, attack=attack)
        stack.callback(device.close)
        made.append(device)
    return made


def _let_open(files: int) -> None:
    """Let this process open so many more files; ConfigError where it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + 256
    if wanted > hard != resource.RLIM_INFINITY:
        raise ConfigError(
            f"so many devices need {wanted} open files, the limit is {hard}",
            where="fleet sim",
            remedy="simulate fewer devices, or raise the hard limit (ulimit -Hn)",
        )
    if wanted > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _level(key: str) -> str:
    """A key as the name of a device."""
    return "u-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in key)[:60]


def _fleet(
    plan: SimulationPlan, devices: list[VirtualDevice], broker: tuple[str, int], folder: Path,
    on_progress: Callable[[str], Any],
) -> dict[str, Weights]:  # fmt: skip
    """Let the fleet learn; its models by fingerprint."""
    config = _configuration(plan, len(devices), broker, folder)
    coordinator = FleetWithGroups(config) if plan.groups else Coordinator(config)
    each = (
        list(coordinator.coordinators.values()) if isinstance(coordinator, FleetWithGroups) else [coordinator]
    )
    failed: list[BaseException] = []

    def coordinate() -> None:
        try:
            coordinator.run()
        except BaseException as problem:  # noqa: BLE001  it is raised again, by who waits
            failed.append(problem)

    thread = threading.Thread(target=coordinate, name="coordinator")
    with DevicePool(devices, broker, workers=max(1, len(os.sched_getaffinity(0)) - 1)):
        thread.start()
        reported, since = 0, time.monotonic()
        while thread.is_alive():
            thread.join(0.5)
            ended = sum(one.course.number for one in each)
            if ended > reported:
                reported, since = ended, time.monotonic()
                on_progress(f"round {reported} of {plan.rounds * len(each)}")
            if time.monotonic() - since > PATIENCE:
                coordinator.stop()
                thread.join()
                raise EdgedError(f"round {reported} has not ended after {PATIENCE:g} s", where="fleet sim")
    if failed:
        raise failed[0]
    return {digest: one.journal.weights(digest) for one in each for digest in one.journal.models()}


def _configuration(
    plan: SimulationPlan, devices: int, broker: tuple[str, int], folder: Path
) -> CoordinatorConfig:
    host, port = broker
    values: dict[str, Any] = {
        "fleet": FLEET,
        "model": folder / "bundle",
        "dir": folder / "coordinator",
        "keep": plan.rounds + 2,
        "mqtt": {"host": host, "port": port},
        "round": {
            "devices": devices, "over": 1.0, "quorum": 0.6, "deadline": PATIENCE / 2, "window": 0.2,
            "rounds": plan.rounds, "kind": plan.kind,
        },
        "choose": {"everyone": True},
        "groups": _groups(plan),
        "train": {
            "epochs": plan.epochs, "learning_rate": plan.learning_rate, "batch_size": plan.batch_size,
            "proximal": plan.proximal, "dynamic": plan.dynamic,
            "clip_norm": plan.clip_norm, "noise": plan.noise, "step": plan.step,
            "personal": list(plan.personal),
        },
        "admit": {"max_norm": 20.0},
        "reduce": {"how": plan.reduce, "trim": plan.trim, "opposed": plan.opposed},
        "masks": {"enabled": plan.masks},
        "gate": {"stages": [1.0], "wait": PATIENCE / 2, "mean": 1.0, "worst": 10.0},
    }  # fmt: skip
    if plan.groups:  # of each group all that are there, however many
        values["round"] |= {"quorum": 1e-6}
        values["choose"] = {"patience": 2.0, "min_samples": 0, "idle": False}
    try:
        return CoordinatorConfig.model_validate(values)
    except ValidationError as problem:
        first = problem.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "edged fleet sim"
        said = first["msg"].removeprefix("Value error, ")
        raise ConfigError(said, where=key, remedy="change the options") from None


def _groups(plan: SimulationPlan) -> dict[str, dict[str, Any]]:
    numbered = enumerate(plan.groups, 1)
    return {f"group-{n}": {"devices": [pattern], "own_model": True} for n, pattern in numbered}


def _apart(plan: SimulationPlan, devices: Sequence[VirtualDevice]) -> dict[str, list[VirtualDevice]]:
    """The devices of each group; those of none under the empty name. ConfigError for an empty group."""
    rules = [GroupRule(name, tuple(values["devices"])) for name, values in _groups(plan).items()]
    found: dict[str, list[VirtualDevice]] = {name: [] for name in ("", *(rule.name for rule in rules))}
    for device in devices:
        found[group_of(rules, DeviceFacts(device.name))].append(device)
    if empty := [pattern for pattern, rule in zip(plan.groups, rules, strict=True) if not found[rule.name]]:
        known = ", ".join(device.name for device in devices[:3])
        raise ConfigError(f"no device is called {empty[0]!r}", where="--group", remedy=f"they are {known}, …")
    if not found[""]:
        raise ConfigError("no device is left for the fleet", where="--group", remedy="leave one pattern out")
    return found


def central_accuracy(plan: SimulationPlan) -> float:
    """On those that take no part: of one model trained on all rows of the devices together."""
    with _scratch_folder() as folder, ExitStack() as stack:
        bench, parts, unseen = _divided(plan, folder)
        devices = _devices(plan, bench, parts, folder, stack)
        return float(_central(plan, bench, devices, unseen, folder).unseen)


def _central(
    plan: SimulationPlan,
    bench: SharedSetup,
    devices: list[VirtualDevice],
    unseen: NDArray[np.int64],
    folder: Path,
) -> ComparedFigures:
    """One model from the rows that the devices have learned from, all together."""
    rows = np.concatenate([device.learned for device in devices])
    settings = RoundSettings(plan.central_epochs, None, plan.learning_rate, plan.batch_size)
    made = bench.trained(bench.initial(), rows, settings, plan.seed)
    parts = [device.kept for device in devices]
    apart, *each = bench.evaluate(made, folder / "asked.onnx", unseen, *parts)
    accuracies = [asked.metric for asked in each]
    mean, worst = float(np.mean(accuracies)), float(np.min(accuracies))
    return ComparedFigures(plan.central_epochs, apart.metric, mean, worst)


def _alone(
    plan: SimulationPlan,
    bench: SharedSetup,
    devices: Sequence[VirtualDevice],
    unseen: NDArray[np.int64],
    folder: Path,
) -> ComparedFigures:
    """Each device with a model of its own rows alone, trained as long as the one on all rows."""
    settings = RoundSettings(plan.central_epochs, None, plan.learning_rate, plan.batch_size)
    asked = []
    for device in devices:
        made = bench.trained(bench.initial(), device.learned, settings, plan.seed)
        asked.append(bench.evaluate(made, folder / "asked.onnx", unseen, device.kept))
    own = [found[1].metric for found in asked]
    mean_unseen = float(np.mean([found[0].metric for found in asked]))
    return ComparedFigures(plan.central_epochs, mean_unseen, float(np.mean(own)), float(np.min(own)))


def _closed_form(
    bench: SharedSetup, devices: list[VirtualDevice], made: Weights, unseen: NDArray[np.int64], folder: Path
) -> ClosedFormFigures:
    """The last layer solved for from the rows of all devices together, and how far the fleet's is from it."""
    initial = bench.initial()
    section = StatisticsSection()
    head = SolvedHead.of({name: value.shape for name, value in initial.items()}, section)
    rows = np.concatenate([device.learned for device in devices])
    sums = bench.statistics(rows, RoundSettings(statistics=head.settings), initial)
    expected = head.model(initial, sums, section)
    apart = max(float(np.abs(expected[name] - made[name]).max()) for name in expected)
    return ClosedFormFigures(bench.evaluate(expected, folder / "asked.onnx", unseen)[0].metric, apart)
