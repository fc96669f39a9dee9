"""What a child process of a recipe run is told: one training, or one bundle to build."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  pydantic reads the annotations
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import TypeAdapter

from edged.domain.messages.encoding import json_ready
from edged.domain.stream.schema import Schema  # noqa: TC001  likewise
from edged.errors import EdgedError
from edged.host.process_limits import die_with_parent
from edged.workbench.experiments.grid import Recipe  # noqa: TC001  likewise
from edged.workbench.experiments.loading import Split

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

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

    def as_dict(self) -> dict[str, Any]:
        """The order as JSON takes it, with the process that gives it."""
        values: dict[str, Any] = TypeAdapter(TrialOrder).dump_python(self, mode="json")
        return values | {"parent": os.getpid()}


def carry_out(work: Callable[[TrialOrder], dict[str, Any]]) -> int:
    """Do the work that is ordered on stdin, tell the result; the exit code. It ends with who ordered it."""
    try:
        values = json.loads(sys.stdin.read())
        die_with_parent(values.pop("parent"))
        tell(work(TypeAdapter(TrialOrder).validate_python(values)))
    except EdgedError as problem:
        sys.stderr.write(problem.line() + "\n")
        return problem.exit_code
    return 0


def tell(message: dict[str, Any]) -> None:
    """Write a message to who ordered this, a line of JSON on stdout."""
    sys.stdout.write(json.dumps(json_ready(message)) + "\n")
    sys.stdout.flush()


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
    """Write what all trainings read."""
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
