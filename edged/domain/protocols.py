"""Interfaces between the floors: engines, models, stored samples and values, and the broker connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edged.domain.commands.delivery_policy import MessageKind
from edged.domain.drift.signals import DriftSignal
from edged.domain.stream.sample import Batch, LabelUpdate, Window
from edged.domain.training.message import Message
from edged.domain.training.trainer_messages import CheckpointWritten, RunProgress

# Of one label, or one after the other of several.
Labels: TypeAlias = NDArray[np.generic] | Sequence[NDArray[np.generic]]


class StepResult(NamedTuple):
    """What one training step did. `applied` is False where it was undone or only accumulated."""

    loss: float
    applied: bool


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up from 0 to `initial` over `warmup` steps, then linear decay to 0 at `total`.

    `total` 0 means constant after the warm-up.
    """

    initial: float
    warmup: int = 0
    total: int = 0


@dataclass(frozen=True)
class Anchor:
    """Weights that training is pulled back to: ½·strength·Σ(θ − value)² joins the loss.

    Parameters that are not named are free.
    """

    values: Mapping[str, NDArray[np.float32]]
    strength: float


def labels_of(y: Labels) -> Sequence[NDArray[np.generic]]:
    """The labels as a sequence, of one array or several."""
    return y if isinstance(y, (list, tuple)) else (y,)


class Engine(Protocol):
    """Executes training steps on one bundle.

    Inputs are `(n, d)` float32; labels are what the bundle's loss takes: `(n,)` int64 class
    indices for cross-entropy, `(n, k)` float32 otherwise; a sequence of such arrays for a bundle of several
    labels. They have passed `Schema.check`.
    """

    name: str

    def begin(self, rate: LearningRate, *, at_step: int = 0) -> None:
        """Start a learning-rate schedule, `at_step` steps into it when a run is resumed."""

    def step(
        self, x: NDArray[np.float32], y: Labels, *, apply: bool = True, careful: bool = False
    ) -> StepResult:
        """One forward and backward pass; with `apply` also the optimizer update and gradient reset.

        A non-finite loss changes nothing (`applied` False). With `careful` the gradients are
        looked at too, before they are applied; without it a bad gradient is noticed by `check`.
        """

    def guide(self, anchor: Anchor | None = None) -> None:
        """Pull the following steps to anchor weights; without any, no longer.

        It is not part of what `save` writes. Raises UnavailableError where the engine cannot.
        """

    def evaluate(self, x: NDArray[np.float32], y: Labels) -> float:
        """Loss without any update."""

    def check(self) -> None:
        """Raise NonFiniteError when a parameter is NaN or infinite."""

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Copies of all parameters by name, trainable and frozen."""

    def set_parameters(self, values: Mapping[str, NDArray[np.float32]]) -> None:
        """Overwrite the named parameters; shapes must match."""

    def save(self, directory: Path) -> None:
        """Write weights and optimizer state as files into `directory` (not yet published)."""

    def restore(self, directory: Path) -> None:
        """Read back what `save` wrote; the next step continues bit-exactly."""

    def export(self, path: Path) -> None:
        """Write the inference model with the present weights to `path`."""


class Model(Protocol):
    """A loaded inference model. Input `(n, d)` float32, output `(n, k)` float32, raw model output."""

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run the model on a batch."""


@runtime_checkable
class ExpertModel(Model, Protocol):
    """A model that may consist of experts.

    `input_width` is d. With `experts`, how many there are, the output is their mixture with equal weights; 0
    for a model of one part.
    """

    input_width: int
    experts: int

    def predict_experts(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """What each expert says of a batch, `(n, experts, k)`."""


class ModelReader(Protocol):
    """Loads models from files, as serving runs them."""

    def load(self, path: Path) -> Model:
        """Load a model and warm it up; raises ModelError when that fails."""

    def breathe(self) -> None:
        """Let other threads run: call it between pieces of work that hold the interpreter's lock."""


@dataclass(frozen=True)
class ServedModel:
    """A model as the serving loop holds it. `scale` `(width,)` weights reconstruction errors."""

    version: int
    model: Model
    scale: NDArray[np.float32] | None = None


class StoredRows(Protocol):
    """Stored samples by offset."""

    def rows(self, offsets: NDArray[np.int64]) -> Window:
        """Read the samples with these offsets `(n,)`; missing ones are left out."""


class Holdout(Protocol):
    """Labelled samples that may be trained on, and those that never are."""

    def training_window(self, after_seq: int, limit: int, *, upto_seq: int | None = None) -> Window:
        """Labelled samples of the training role, the newest `limit`, oldest first."""

    def holdout_window(self, limit: int, *, before_seq: int | None = None) -> Window:
        """Return the newest `limit` holdout samples, before `before_seq` if given."""

    def older_holdout(self, limit: int, before_seq: int) -> Window:
        """Return at most `limit` holdout samples, spread evenly over all before `before_seq`."""


class Throttle(Protocol):
    """Slows training down between steps, and ends it."""

    @property
    def stopping(self) -> bool:
        """Whether training is to end after the present step."""

    def throttle(self, seconds: float) -> None:
        """Pause after a step that took `seconds`, as long as the pace asks for."""


class RunControl(Throttle, Protocol):
    """Controls training runs from outside, and receives their reports."""

    def checkpoint_requested(self) -> bool:
        """Whether a checkpoint was requested since the last call."""

    def report(self, message: Message) -> None:
        """Publish what happens in a run."""


class PlacedHoldout(Holdout, Protocol):
    """A holdout that knows which sample of its key each is."""

    def places(self, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Numbers for the keys of these samples, and which of its key each is, both `(n,)`."""


class Broker(Protocol):
    """The connection that deliveries come over, as ingest uses it."""

    @property
    def in_flight(self) -> int:
        """How many messages the broker sends before it waits for acknowledgements."""

    def ack(self, deliveries: Sequence[Any]) -> None:
        """Acknowledge deliveries: the broker need not send them again."""

    def drop(self) -> None:
        """Reconnect, so that the broker delivers again what is not acknowledged."""


class SampleSink(Protocol):
    """Takes samples and labels for serving, in the order in which they came."""

    def submit(self, batch: Batch, received: NDArray[np.float64]) -> None:
        """Hand over samples to be predicted; `received` `(n,)` is in monotonic seconds."""

    def label(self, updates: list[LabelUpdate]) -> None:
        """Hand over labels that found their samples."""


class Stage(Protocol):
    """A loop that takes turns, on one thread at a time."""

    def turn(self, *, woken: bool) -> bool:
        """Do what there is to do; `woken` is False when the patience has ended. False after the last turn."""

    def patience(self) -> float | None:
        """Seconds until a turn is due that nobody wakes it for; None for never."""


class ModelSupervisor(Protocol):
    """Acts on what ingest and serving find: replaces champions, starts training runs."""

    def wake(self) -> None:
        """Labels became durable, or samples that label themselves; a training run may be due."""

    def drifted(self, signal: DriftSignal) -> None:
        """A drift or a warning of one was signalled."""

    def fallen(self) -> None:
        """Live quality fell."""

    def probation_ended(self, version: int, passed: bool) -> None:
        """The probation of the champion `version` has an outcome."""

    def champion_failed(self, version: int, reason: str) -> None:
        """The champion `version` could not answer, and its predecessor has taken over."""

    def rescue(self, failing: ServedModel, reason: str) -> ServedModel | None:
        """Return another model for a champion that fails and has no predecessor; None without any."""


class RunObserver(Protocol):
    """Hears how far one training run is."""

    def progress(self, message: RunProgress) -> None:
        """The trainer has made some steps."""

    def checkpointed(self, message: CheckpointWritten) -> None:
        """The trainer has written a checkpoint."""


class ValueStore(Protocol):
    """Durable JSON values by name."""

    def get_value(self, name: str, default: Any = None) -> Any:
        """Read the value stored under `name`; `default` if there is none."""

    def set_value(self, name: str, value: Any) -> None:
        """Store a JSON value under `name`; durable when this returns."""


class ConnectionListener(Protocol):
    """Receives changes of the broker connection, on the network thread; both methods must return quickly."""

    def online(self) -> None:
        """Handle a new connection: the broker has accepted it and knows the subscriptions."""

    def connection_changed(self) -> None:
        """Handle a connection that was made, after `online`, or lost."""


class Outbound(Protocol):
    """Sends the reports of a device."""

    def now(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> bool:
        """Publish what is worth nothing without a connection; False when it was not sent."""

    def deliver(self, kind: MessageKind, topic: str, payload: bytes) -> None:
        """Send what must arrive, sooner or later."""


class MessagePublisher(Protocol):
    """Publishes messages at the broker."""

    @property
    def connected(self) -> bool:
        """Whether the broker has accepted the connection and it still stands."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 0, retain: bool = False) -> bool:
        """Publish a message; False if it was rejected."""
