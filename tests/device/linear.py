"""Linear models whose answers are known, as files and as candidates of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from edged.bundles.graph.templates import mlp
from edged.domain.protocols import ServedModel
from edged.domain.stream.sample import Batch
from edged.domain.stream.schema import Schema
from edged.domain.training.training_run import Candidate
from edged.engines.inference import InferenceModel
from edged.storage.files.atomic import publish_directory

Floats = NDArray[np.float32]

WIDTH = 3
SCHEMA = Schema((), WIDTH, "classify", ("no", "yes"))
GOOD, BAD, BROKEN = 1.0, -1.0, float("nan")
"""The class is whether the first value is positive: slope 1 is always right, -1 always wrong."""


def write(path: Path, slope: float, *, inputs: int = WIDTH, outputs: int = 2) -> Path:
    """A model `(n, inputs)` → `(n, outputs)`; the last output is `slope` times the first input."""
    model = mlp(inputs, outputs, ())
    for tensor in model.graph.initializer:
        value = np.zeros_like(numpy_helper.to_array(tensor))
        if value.ndim == 2:
            value[-1, 0] = slope
        tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    onnx.save(model, str(path))
    return path


def inputs(n: int, seed: int = 0) -> Floats:
    """Rows `(n, 3)`, none of them near the boundary."""
    x = np.random.default_rng(seed).standard_normal((n, WIDTH)).astype(np.float32)
    x[:, 0] += np.sign(x[:, 0]) * np.float32(0.1)
    return x


def classes(x: Floats) -> list[float | tuple[float, ...] | None]:
    """Their true classes."""
    return [float(value > 0) for value in x[:, 0]]


def numbered(first: int, n: int) -> NDArray[np.int64]:
    """Offsets `(n,)` from `first` on."""
    return np.arange(first, first + n, dtype=np.int64)


def samples(
    first: int, x: Floats, given_labels: list[Any] | None = None, ids: list[Any] | None = None
) -> Batch:
    """A batch of `x` at the offsets from `first` on, one a second, all of key `k`."""
    n = len(x)
    offsets = numbered(first, n)
    times = np.asarray(offsets, np.float64)
    return Batch(offsets, ["k"] * n, times, times, x, given_labels or [None] * n, ids or [None] * n)


def served(folder: Path, version: int, slope: float) -> ServedModel:
    """A model in the serving loop's hands."""
    return ServedModel(version, InferenceModel(write(folder / f"{version}.onnx", slope)))


def candidate(
    folder: Path,
    run: int,
    slope: float,
    *,
    probe: Floats | None = None,
    expected: Floats | None = None,
    **shape: int,
) -> Candidate:
    """What a training run leaves: a published folder, and what is handed to the gate."""
    staging, final = folder / f".staging-{run}", folder / str(run)
    staging.mkdir(parents=True)
    path = write(staging / "model.onnx", slope, **shape)
    x = inputs(16, 99) if probe is None else probe
    if expected is None:
        expected = InferenceModel(path).predict(x)
    np.save(staging / "probe_input.npy", x)
    np.save(staging / "probe_output.npy", expected)
    publish_directory(staging, final, extra={"run": run})
    return Candidate(
        run, final, None, generation=run, loss_last=0.1, first_offset=1, last_offset=90, samples=80
    )
