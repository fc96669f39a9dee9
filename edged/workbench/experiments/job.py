"""What a recipe run orders from its child processes, one training or one bundle, and what they report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import TypeAdapter

from edged.domain.stream.schema import Schema  # noqa: TC001  likewise
from edged.domain.training.message import Message, SparseMessage, encode
from edged.errors import EdgedError
from edged.host.process_limits import die_with_parent
from edged.workbench.experiments.grid import Recipe  # noqa: TC001  likewise
from edged.workbench.experiments.loading import Split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.json_fields import JsonObject
    from edged.workbench.recordings.stream import Stream

BUNDLE, MODEL, WEIGHTS = "bundle", "model.onnx", "weights.npz"


@dataclass(frozen=True)
class TrialOrder:
    """One training of a recipe from one seed.

    `data` is a directory that `save_data` wrote, `folder` the training's own. With `weights`, a file of
    parameters, a bundle begins with those.
    """

    recipe: Recipe
    schema: Schema
    seed: int
    engine: str
    threads: int
    metric: str
    data: Path
    folder: Path
    bundle: Path
    weights: Path | None = None

    def to_json(self) -> JsonObject:
        """Return the order as JSON values, with the process that gives it."""
        return {**TypeAdapter(TrialOrder).dump_python(self, mode="json"), "parent": os.getpid()}

    @classmethod
    def from_json(cls, values: object) -> TrialOrder:
        """Read the order from what `to_json` returned."""
        return TypeAdapter(TrialOrder).validate_python(values)


@dataclass(frozen=True)
class EpochDone(Message):
    """Where a training stands after an epoch, counted from 1; what cannot be computed is NaN."""

    epoch: int
    epochs: int
    train_loss: float
    validation_loss: float
    train_metric: float
    validation_metric: float


@dataclass(frozen=True)
class Shown(SparseMessage):
    """What a person looks at: a confusion matrix with true classes down, or a histogram of residuals."""

    part: str
    rows: int
    classes: tuple[str, ...] | None = None
    confusion: tuple[tuple[int, ...], ...] | None = None
    unit: str | None = None
    edges: tuple[float, ...] | None = None
    counts: tuple[int, ...] | None = None


@dataclass(frozen=True)
class TrialResult(Message):
    """What a training has come to; figures are the task's metrics by name.

    `errors` are the standard errors of those on the validation part, from the choice of its samples.
    """

    validation: Mapping[str, float]
    errors: Mapping[str, float]
    test: Mapping[str, float] | None
    curve: tuple[EpochDone, ...]
    best_epoch: int
    shown: Shown
    step_us: float
    peak_bytes: int | None
    bundle_bytes: int
    model_bytes: int
    parameters: int
    engine: str
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class BundleBuilt(Message):
    """A bundle is built; what there is to note about it."""

    notes: tuple[str, ...]


def carry_out(work: Callable[[TrialOrder], Message]) -> int:
    """Do the work that is ordered on stdin, report its result; the exit code. It ends with who ordered it."""
    try:
        values = json.loads(sys.stdin.read())
        die_with_parent(values["parent"])
        report(work(TrialOrder.from_json(values)))
    except EdgedError as problem:
        sys.stderr.write(problem.line() + "\n")
        return problem.exit_code
    return 0


def report(message: Message) -> None:
    """Write a message to who ordered this, a line of JSON on stdout."""
    sys.stdout.buffer.write(encode(message))
    sys.stdout.buffer.flush()


@dataclass(frozen=True)
class Data:
    """Samples `(n, d)`, targets `(n, targets)`, and which samples are anomalous where the data tells.

    Both arrays are read from the disk as they are used.
    """

    x: NDArray[np.float32]
    y: NDArray[np.float32]
    truth: NDArray[np.float64] | None
    split: Split


def save_data(folder: Path, stream: Stream, split: Split) -> None:
    """Write the samples and their split, which all trainings read."""
    np.save(folder / "x.npy", np.ascontiguousarray(stream.x, np.float32))
    np.save(folder / "y.npy", np.ascontiguousarray(stream.y, np.float32))
    if stream.truth is not None:
        np.save(folder / "truth.npy", stream.truth)
    np.savez(
        folder / "split.npz", train=split.train, validation=split.validation, test=split.test, gap=split.gap
    )


def load_data(folder: Path) -> Data:
    """Load the data that `save_data` wrote."""
    with np.load(folder / "split.npz") as parts:
        split = Split(parts["train"], parts["validation"], parts["test"], int(parts["gap"]))
    truth = folder / "truth.npy"
    return Data(
        np.asarray(np.load(folder / "x.npy", mmap_mode="r")),
        np.asarray(np.load(folder / "y.npy", mmap_mode="r")),
        np.load(truth) if truth.exists() else None,
        split,
    )
