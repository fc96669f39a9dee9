"""Orders to child processes, and their answers.

All children take orders in one way: the parent writes each order as a line of JSON on their stdin. A child
writes lines on its stdout: reports, and in the end the order's answer or `OrderFailed`. Both ends are of one
version, so the JSON may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar, get_args

from edged import errors
from edged.domain.stream.schema import Schema, Task
from edged.domain.training.message import Message
from edged.errors import EdgedError

R_co = TypeVar("R_co", bound=Message, covariant=True)

ERRORS: Mapping[str, type[EdgedError]] = {
    kind.__name__: kind
    for kind in (
        errors.ConfigError, errors.RefusedError, errors.UnavailableError, errors.StorageError,
        errors.CorruptError, errors.BundleError, errors.ModelError, errors.TrainingError,
    )
}  # fmt: skip
"""Errors that keep their class on the way from a child; any other becomes an EdgedError."""


class Order(Message, Generic[R_co]):
    """An order to a child process, which answers with one `R_co` or with `OrderFailed`."""

    @classmethod
    def result(cls) -> type[R_co]:
        """Return the class of the answer."""
        (kind,) = get_args(vars(cls)["__orig_bases__"][0])
        answer: type[R_co] = kind
        return answer


@dataclass(frozen=True)
class Done(Message):
    """The answer to an order that has no other."""


@dataclass(frozen=True)
class OrderFailed(Message):
    """An order, or the whole process, has failed."""

    what: str
    where: str = ""
    remedy: str = ""
    reason: str = ""  # name of the error's class, or `NO_DATA` of the trainer
    consumed: int | None = None  # with `NO_DATA`: nothing is new up to this position in label order

    @classmethod
    def of(cls, problem: EdgedError, reason: str = "") -> OrderFailed:
        """Describe an error."""
        return cls(problem.what, problem.where, problem.remedy, reason or type(problem).__name__)

    def error(self) -> EdgedError:
        """Return the error that the child described."""
        return ERRORS.get(self.reason, EdgedError)(self.what, where=self.where, remedy=self.remedy)


# ---- python -m edged.bundles ---------------------------------------------------------------------

NetworkKind = Literal["experts", "mlp", "cnn1d", "gru", "autoencoder"]
CONTEXT = (3.0, 12.0, 48.0)
"""Half-lives of the means that `experts` sees samples beside, in samples."""


@dataclass(frozen=True)
class StandardNetwork(Message):
    """A small network for a stream.

    `window` holds the rows and channels of the `features` numbers that it takes. The last size in `hidden` is
    an autoencoder's code. `context` are half-lives of means: `features` is then the width with all columns.
    `change_of` are columns of the input, one for each output: it begins with answering their values, and
    learns how the target differs from them.
    """

    task: Task
    features: int
    outputs: int
    kind: NetworkKind
    window: tuple[int, ...]
    hidden: tuple[int, ...]
    seed: int = 0
    context: tuple[float, ...] = ()
    change_of: tuple[int, ...] = ()


@dataclass(frozen=True)
class StandardBundleOrder(Order[Done]):
    """Build the bundle of a standard network in the directory `out`.

    `options` go to the optimizer. `statistics` are `mean` and `scale` of the inputs, and for values
    `target_mean` and `target_scale`; without them the graph gets neutral ones, which the first training run
    fits.
    """

    network: StandardNetwork
    out: Path
    optimizer: str = "adamw"
    options: Mapping[str, float | None] | None = None
    engine: str = "portable"
    label_smoothing: float = 0.0  # for classes
    statistics: Mapping[str, tuple[float, ...]] | None = None


@dataclass(frozen=True)
class LinearHead(Message):
    """Probabilities softmax(sharpness·(prior + clip((x − mean)·scale, ±clip)·weights)).

    `mean` and `scale` `(columns,)`, `weights` `(columns, classes)`, `prior` `(classes,)`. The head sees the
    first `columns` of an input.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...]
    prior: tuple[float, ...]
    sharpness: float
    clip: float


@dataclass(frozen=True)
class MixtureOrder(Order[Done]):
    """Write the ONNX file `out`: a model with the mixture of its experts in it.

    `weights` are those of the experts of `model`, in their order, then that of `head`, where there is one. A
    model of one network is one expert.
    """

    model: Path
    out: Path
    weights: tuple[float, ...]
    head: LinearHead | None = None


# ---- python -m edged.trainer.first_opening -------------------------------------------------------


OpeningKind = Literal["bundle", "model", "configured"]


@dataclass(frozen=True)
class Opened(Message):
    """Opened file: of a bundle the fingerprint, of a signed one the version and the id of the key."""

    fingerprint: str = ""
    version: int = 0
    signer: str = ""


@dataclass(frozen=True)
class FirstOpening(Order[Opened]):
    """Verify what came from elsewhere, and open it with onnxruntime within limits.

    Attributes
    ----------
    kind
        A `bundle` that is installed from its file, a `model` file, or the `configured`
        bundle: a directory or one file.
    state
        The device's state directory.
    schema
        What the bundle has to fit.
    batch
        Rows of a training step.
    max_bytes
        Most bytes that an installed bundle may have.
    keys
        Public keys of which one must have signed a bundle; none where no signature is asked for.
    source
        The path of the file, or of the configured bundle.
    bundle
        The bundle that a `model` is for.
    keep
        Fingerprints of the installed bundles that stay.
    parent
        Process id of the daemon, with which this process ends.
    memory
        Bytes of data that the process may allocate.
    seconds
        Processor time that it may take.
    least_version
        Lowest version of a signed bundle that is taken.
    now
        Unix seconds by the device's clock.
    """

    kind: OpeningKind
    state: Path
    schema: Schema
    batch: int
    max_bytes: int
    keys: tuple[Path, ...]
    source: Path
    parent: int
    memory: int
    seconds: int
    bundle: Path | None = None
    keep: tuple[str, ...] = ()
    least_version: int = 0
    now: float = 0.0
