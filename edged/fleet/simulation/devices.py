"""Virtual devices on parts of one recording: the daemon's pipeline, with a trainer in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from edged.clock import SystemClock
from edged.config import Config, FleetConfig
from edged.device.admin.stopped_device import model_reader
from edged.device.events import Events
from edged.device.fleet_member.round_executor import RoundExecutor
from edged.device.learning.trainer_client import NothingNewError, TrainerClient
from edged.device.pipeline import Host, Pipeline
from edged.device.startup.bootstrap import open_samples
from edged.domain.events import Event
from edged.domain.federated.messages import LARGEST_MODEL, RoundAnnouncement
from edged.domain.federated.participation import MembershipRecord
from edged.domain.judging.outputs import answers, errors
from edged.domain.protocols import Model
from edged.domain.stream.sample import Batch
from edged.domain.stream.schema import Schema
from edged.domain.training.message import Message
from edged.domain.training.trainer_messages import Setup, TrainingOrder
from edged.engines.inference import InferenceModel
from edged.engines.portable.description import Description, base_model
from edged.errors import ConfigError, NoDataError
from edged.mqtt.weight_encoding import fleet_model
from edged.storage.models.bundles import Bundle
from edged.storage.models.installed_bundles import ActiveBundle, InstalledBundles
from edged.storage.models.registry import Registry
from edged.trainer.trainer import Trainer

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from edged.domain.federated.round_orders import FleetModelResult, RoundResult

    Weights = Mapping[str, NDArray[np.float32]]
    Index = NDArray[np.int64]

R = TypeVar("R", bound=Message)

FLEET = "sim"
HOLDOUT = 0.25  # of a device's own rows
LEAST = 40  # rows with which a device can learn, judge and be tested
BLOCK = 8
PARTS = 5  # of which one is for the report alone


def by_key(keys: Sequence[str]) -> dict[str, Index]:
    """Return a device for each key, in the order in which they appear.

    Raises ConfigError when a key has too few rows.
    """
    codes = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    of_row = np.array([codes[key] for key in keys], np.int64)
    found = {key: np.flatnonzero(of_row == number) for key, number in codes.items()}
    poor = [key for key, rows in found.items() if len(rows) < LEAST]
    if poor:
        raise ConfigError(
            f"key {poor[0]} has {len(found[poor[0]])} rows, at least {LEAST} are needed", where="--key"
        )
    return found


def own_and_kept(rows: Index) -> tuple[Index, Index]:
    """Return rows that a device learns from and judges by, and those for the report: four fifths and one.

    They alternate in blocks, as neighbouring rows are alike.

    >>> [len(part) for part in own_and_kept(np.arange(400))]
    [320, 80]
    """
    kept = (np.arange(len(rows)) // BLOCK) % PARTS == PARTS - 1
    return rows[~kept], rows[kept]


class Recording:
    """Rows `x` `(n, d)` with classes `y` `(n,)`, and the bundle of a classifier for them."""

    def __init__(self, bundle: Bundle, schema: Schema, x: NDArray[np.float32], y: Index) -> None:
        self.bundle, self.schema = bundle, schema
        self._x, self._y = x, y.astype(np.float32).reshape(-1, 1)
        self._base = base_model(bundle, Description.of(bundle))

    def batch(self, rows: Index) -> Batch:
        """Return rows as labelled samples of a device whose log is empty, one a second."""
        n = len(rows)
        offsets = np.arange(1, n + 1)
        ts, labels = offsets.astype(np.float64), self._y[rows, 0].astype(np.int64).tolist()
        return Batch(offsets, [""] * n, ts, ts, self._x[rows], labels, [None] * n, [None] * n)

    def configuration(self, name: str, folder: Path, seed: int) -> Config:
        """Return the configuration of a device."""
        config = Config.model_validate({
            "device": {"id": name},
            "storage": {"dir": folder, "durability": "relaxed"},
            "stream": {
                "features": self._x.shape[1], "task": "classify", "classes": len(self.schema.classes)
            },
            "model": {"bundle": self.bundle.path},
            "training": {"engine": "portable"},
            "gate": {"holdout": HOLDOUT},
            "fleet": {"name": FLEET},
        })  # fmt: skip
        return config.model_copy(update={"training": config.training.with_constants(seed=seed)})

    def model(self, weights: Weights, path: Path) -> Model:
        """Write the network with these weights to `path`, and open it."""
        path.write_bytes(bytes(self._base.with_parameters({**self._base.parameters(), **weights})))
        return InferenceModel(path, threads=1)

    def accuracy(self, model: Model, rows: Index) -> float:
        """Return the share of right answers on rows."""
        raw = model.predict(np.ascontiguousarray(self._x[rows]))
        return 1.0 - float(errors(self.schema, answers(self.schema, raw), self._y[rows]).mean())


# ---- a device --------------------------------------------------------------------------------


class Unthrottled:
    """A `RunControl` that never stops or slows a run, and hands its reports to the caller of the run."""

    stopping = False

    def __init__(self) -> None:
        self.on_message: Callable[[Message], None] = lambda _: None

    def throttle(self, seconds: float) -> None:
        """Continue at once after a step."""

    def checkpoint_requested(self) -> bool:
        """Request only the checkpoints that a run writes anyway."""
        return False

    def report(self, message: Message) -> None:
        """Hand a report on."""
        self.on_message(message)


class LocalTrainer(TrainerClient):
    """Executes orders on the caller's thread, one at a time: a machine has no room for so many trainers."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(config, durable=False)
        self._control = Unthrottled()
        self._trainer = Trainer(config, self._control, Setup("", durable=False), seed=seed)

    def run(self, order: TrainingOrder[R], on_message: Callable[[Message], None] = lambda _: None) -> R:
        """Execute an order and return its result; see `TrainerClient.run`."""
        with self.turn():
            self._control.on_message = on_message
            try:
                return cast("R", self._trainer.execute(order))
            except NoDataError as problem:
                raise NothingNewError(problem.line(), self._trainer.learner.state.consumed) from None

    def close(self) -> None:
        """Close the trainer's log."""
        self._trainer.close()
        super().close()


class PooledHost:
    """The `MemberHost` of a virtual device: work runs on a thread pool, the record stays in memory."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self.record = MembershipRecord()

    def store(self, record: MembershipRecord) -> None:
        """Keep the membership record in memory."""
        self.record = record

    def between_runs(self, job: Callable[[], None]) -> None:
        """Call `job` on a thread of the pool: there are no other training runs."""
        self._pool.submit(job)

    def event(self, event: Event) -> None:
        """Ignore the event: the simulation reports what devices measure."""


class VirtualDevice(RoundExecutor):
    """A simulated device, whose own training rests.

    `folder` is its state directory, `rows` `(n,)` are its rows of the recording.

    Attributes
    ----------
    found
        By fingerprint of a model: its accuracy, and that of the model served afterwards, on the device's
        rows that take no part in learning.
    sent
        Bytes of its updates, by round.
    """

    def __init__(self, name: str, folder: Path, recording: Recording, rows: Index, seed: int) -> None:
        self.name, self.folder, self._recording = name, folder, recording
        self.found: dict[str, tuple[float, float]] = {}
        self.sent: dict[int, int] = {}
        config = recording.configuration(name, folder, seed)
        self.fleet = cast("FleetConfig", config.fleet)
        with ExitStack() as stack:
            registry = Registry.open(folder)
            stack.callback(registry.close)
            samples = open_samples(config)
            stack.callback(samples.close)
            own, self._kept = own_and_kept(rows)
            samples.commit(recording.batch(own), [])
            client = LocalTrainer(config, seed)
            stack.callback(client.close)
            host = Host(Events(), SystemClock(), model_reader(config), client)
            pipeline = Pipeline(config, recording.bundle, registry, samples, samples, host)
            self._stack = stack.pop_all()
        bundles = ActiveBundle(recording.bundle, InstalledBundles(folder), registry, ())
        super().__init__(pipeline, self.fleet, bundles)

    def new_samples(self, consumed: int) -> int:  # noqa: ARG002
        """Return all labelled samples: a recording brings no new ones between rounds."""
        return super().new_samples(0)

    def train(self, announced: RoundAnnouncement, model: Path) -> RoundResult:
        """Train in the round, and note the size of the update."""
        result = super().train(announced, model)
        self.sent[announced.round] = result.bytes
        return result

    def evaluate(
        self, announced: RoundAnnouncement, model: Path, standing: tuple[str, Path] | None
    ) -> FleetModelResult:
        """Try the fleet's model as a device does, and note its accuracy and that of the model then served."""
        result = super().evaluate(announced, model, standing)
        weights = fleet_model(model, announced.base.hash, LARGEST_MODEL)
        shared = self._recording.model(weights, self.folder / "asked.onnx")
        served = self._pipeline.predictor.champion.model
        self.found[announced.base.hash] = (
            self._recording.accuracy(shared, self._kept), self._recording.accuracy(served, self._kept)
        )  # fmt: skip
        return result

    def close(self) -> None:
        """Close its trainer, registry and sample log."""
        self._stack.close()
