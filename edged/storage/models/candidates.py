"""Verifying what a training run leaves for the gate: a model, and a probe to know it by again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edged.domain.model_files import model_in
from edged.domain.protocols import Model
from edged.domain.stream.quantiles import quantiles
from edged.errors import ModelError
from edged.storage.files.atomic import verify_directory

LATENCY_RUNS = 20
# Inputs `(n, d)`, and the outputs that the trainer gets for them: so the daemon sees that it gets the same.
PROBE_FILES = ("probe_input.npy", "probe_output.npy")


@dataclass(frozen=True)
class ProbeRules:
    """Limits that a candidate must keep to.

    `inputs` is the width of a row without its context, which makes it several times as wide; `outputs` are
    the widths of an answer that fit the stream. `tolerance` is the largest difference to the trainer's
    outputs, relative where those are above 1; `latency` the longest
    median time of one prediction, in seconds.
    """

    inputs: int
    outputs: tuple[int, ...]
    tolerance: float
    latency: float


def verify_candidate(
    folder: Path, load_model: Callable[[Path], Model], rules: ProbeRules, breathe: Callable[[], None]
) -> tuple[Model, float]:
    """See that a candidate is whole, loads, gives the trainer's own outputs, and is fast enough.

    Returns the loaded model, and the median seconds of one prediction. `breathe` is called between the pieces
    of work that hold the interpreter's lock.

    Raises CorruptError when a file is missing or damaged; ModelError when it cannot be loaded or breaks one
    of the rules.
    """
    verify_directory(folder)
    breathe()
    model = load_model(model_in(folder))
    x, expected = _probe(folder)
    if x.ndim != 2 or x.shape[1] % rules.inputs or len(x) == 0:
        raise ModelError(f"probe shape {x.shape}, the stream has {rules.inputs} features", where=str(folder))
    got = model.predict(x)
    if got.shape != expected.shape or got.shape[1] not in rules.outputs:
        raise ModelError(f"output shape {got.shape}, the trainer had {expected.shape}", where=str(folder))
    if not np.isfinite(got).all():
        raise ModelError("the model's outputs are not finite", where=str(folder))
    worst = float(np.max(np.abs(got - expected) / np.maximum(1.0, np.abs(expected))))
    if not worst <= rules.tolerance:  # NaN must not pass
        raise ModelError(f"outputs differ from the trainer's by {worst:.2g}", where=str(folder))
    breathe()
    return model, _fast_enough(model, x, rules, folder)


def _probe(folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    x, expected = (np.load(folder / name, allow_pickle=False) for name in PROBE_FILES)
    return x, expected


def _fast_enough(model: Model, x: NDArray[np.float32], rules: ProbeRules, where: Path) -> float:
    seconds = _latency(model, x[:1])
    if seconds > rules.latency:
        raise ModelError(
            f"one prediction takes {seconds * 1e3:.1f} ms, {rules.latency * 1e3:.1f} ms allowed",
            where=str(where),
            remedy="use a smaller model",
        )
    return seconds


def _latency(model: Model, x: NDArray[np.float32]) -> float:
    times = []
    for _ in range(LATENCY_RUNS):
        started = time.perf_counter()
        model.predict(x)
        times.append(time.perf_counter() - started)
    return float(quantiles(np.array(times), [0.5])[0])
