"""Time of a training step: both engines' loops and the bare training API's, on the same batches.

`python benchmarks/engines.py --json` prints one object with `rows`; times are medians over repeats
in which the loops take turns, in microseconds per step. `--out FILE` also writes it to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from edged.artifacts.build import build
from edged.artifacts.standardise import Statistics
from edged.artifacts.templates import mlp
from edged.domain.protocols import LearningRate
from edged.engines import open_engine, ort, training_api
from edged.engines.runtime import onnxruntime

if TYPE_CHECKING:
    from collections.abc import Callable

    from edged.storage.bundles import Bundle

INPUTS, HIDDEN, CLASSES = 64, (128, 64), 6
BATCHES = 50
# Rows in a batch, threads and optimizer of each case.
CASES = [
    (1, 1, "adamw"),
    (16, 1, "adamw"),
    (32, 1, "adamw"),
    (64, 1, "adamw"),
    (128, 1, "adamw"),
    (256, 1, "adamw"),
    (32, 1, "sgd"),
    (32, 2, "adamw"),
]

Data = list[tuple[np.ndarray, np.ndarray]]


def made_batches(rows: int) -> Data:
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((rows, INPUTS)).astype(np.float32) for _ in range(BATCHES)]
    return [(x, np.abs(x[:, 0] * 3).astype(np.int64) % CLASSES) for x in xs]


def engine_loop(name: str, bundle: Bundle, data: Data, threads: int) -> Callable[[], None]:
    engine = open_engine(name, bundle, threads)
    engine.begin(LearningRate(1e-3))

    def loop() -> None:
        for x, y in data:
            engine.step(x, y)

    return loop


def bare_loop(bundle: Bundle, data: Data, threads: int) -> Callable[[], None]:
    """What upstream's documentation shows, with the same thread counts; the loss is read each step."""
    api, options = training_api.load("api"), ort.session_options(threads)
    state = api.CheckpointState.load_checkpoint(str(bundle.checkpoint))
    module = api.Module(str(bundle.training_model), state, str(bundle.eval_model), session_options=options)
    optimizer = api.Optimizer(str(bundle.optimizer_model), module)
    optimizer.set_learning_rate(1e-3)

    def loop() -> None:
        for x, y in data:
            float(module(x, y))
            optimizer.step()
            module.lazy_reset_grad()

    return loop


def interleaved(loops: list[Callable[[], None]], repeats: int) -> list[list[float]]:
    """Microseconds per step of each loop, repeat by repeat."""
    times: list[list[float]] = [[] for _ in loops]
    for loop in loops:
        loop()
    for repeat in range(repeats):
        # Whoever goes first finds the caches of the other: they change places.
        order = range(len(loops)) if repeat % 2 == 0 else reversed(range(len(loops)))
        for i in order:
            began = time.perf_counter()
            loops[i]()
            times[i].append((time.perf_counter() - began) / BATCHES * 1e6)
    return times


def measure(bundle: Bundle, batch: int, threads: int, optimizer: str, repeats: int) -> dict[str, Any]:
    data = made_batches(batch)
    loops = [engine_loop(name, bundle, data, threads) for name in ("native", "portable")]
    native, portable, bare = interleaved([*loops, bare_loop(bundle, data, threads)], repeats)
    return {
        "model": f"mlp {'-'.join(map(str, (INPUTS, *HIDDEN, CLASSES)))}, inputs standardised in the graph",
        "batch": batch,
        "threads": threads,
        "optimizer": optimizer,
        "native_us": round(median(native), 1),
        "portable_us": round(median(portable), 1),
        # The median of ratios within a repeat: a slow spell of the machine hits all loops alike.
        "ratio": round(median(n / p for n, p in zip(native, portable, strict=True)), 3),
        "torch_us": None,
        "bare_us": round(median(bare), 1),
        "native_to_bare": round(median(b / n for n, b in zip(native, bare, strict=True)), 3),
    }


def run(repeats: int) -> dict[str, Any]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for batch, threads, optimizer in CASES:
            model, statistics = mlp(INPUTS, CLASSES, HIDDEN), Statistics.identity(INPUTS)
            out = Path(folder) / optimizer
            bundle = build(model, out, loss="cross_entropy", optimizer=optimizer, standardise=statistics)
            rows.append(measure(bundle, batch, threads, optimizer, repeats))
    return {
        "command": shlex.join(["python", "benchmarks/engines.py", *sys.argv[1:]]),
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "rows": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--repeats", type=int, default=60, help="turns of each loop, 50 steps a turn")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    options = parser.parse_args()
    result = run(options.repeats)
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if options.json:
        print(json.dumps(result))
        return 0
    for row in result["rows"]:
        print("  ".join(f"{name} {value}" for name, value in row.items() if value is not None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
