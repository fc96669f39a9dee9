"""Time and memory of a training step: both engines' loops, the bare training API's, and PyTorch's.

Loops take turns on the same batches in one run, so a ratio means more than a time. `ratio` is native to
portable (above 1 the portable engine is faster); `torch_ratio` is PyTorch's eager step to the portable
engine's, `native_to_bare` the bare API's to the native engine's. Times are medians over the turns, in
microseconds per step. Memory is the peak of the resident set, the whole of it and its growth over what it
is after the imports, each engine in a process of its own, one thread, portable to native.

`python benchmarks/engines.py [--torch PYTHON] [--models mlp,lstm] [--seconds S] [--json] [--out FILE]`
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from models import MODELS, Model
from output import Row, finish, options

from edged.bundles.build import build
from edged.bundles.losses.named import CrossEntropy
from edged.bundles.request import BuildRequest
from edged.domain.protocols import LearningRate
from edged.domain.training.optimizers import Optimizer
from edged.engines import open_engine
from edged.engines.native import api as training_api
from edged.engines.runtime import ort
from edged.engines.runtime.ort import onnxruntime
from edged.errors import EdgedError

if TYPE_CHECKING:
    import argparse

    from edged.storage.models.bundles import Bundle

HERE = Path(__file__).parent
ENGINES = ("native", "portable")
BATCHES, THREADS = (1, 16, 64, 256), (1, 2)
# Further cases of the dense network: rows in a batch, threads, optimizer.
MORE = [(32, 1, "adamw"), (128, 1, "adamw"), (32, 1, "sgd"), (32, 2, "adamw")]
MEMORY = (
    "native_growth_mb",
    "portable_growth_mb",
    "growth_ratio",
    "native_peak_mb",
    "portable_peak_mb",
    "peak_ratio",
)
TURN, STEPS, LEAST_TURNS = 0.05, (2, 1024), 5

Data = list[tuple[np.ndarray, np.ndarray]]
# Takes a number of steps and returns the seconds they took.
Loop = Callable[[int], float]


@dataclass(frozen=True)
class Case:
    """What is timed in one row of the table."""

    model: Model
    batch: int
    threads: int
    optimizer: str


@dataclass
class Bundles:
    """Bundles by model, optimizer and engine, built when first asked for, and why one could not be."""

    folder: Path
    built: dict[tuple[str, str, str], Bundle] = field(default_factory=dict)
    refused: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def get(self, case: Case) -> tuple[dict[str, Bundle], dict[str, str]]:
        """The bundles, and reasons why there is none, by engine."""
        keys = {engine: (case.model.name, case.optimizer, engine) for engine in ENGINES}
        for engine, key in keys.items():
            if key not in self.built and key not in self.refused:
                self._build(key, case.model, engine)
        return (
            {engine: self.built[key] for engine, key in keys.items() if key in self.built},
            {engine: self.refused[key] for engine, key in keys.items() if key in self.refused},
        )

    def _build(self, key: tuple[str, str, str], model: Model, engine: str) -> None:
        try:
            request = BuildRequest(
                model=model.make(), loss=CrossEntropy(), optimizer=Optimizer.of(key[1]),
                standardise=model.statistics or False, engine=engine,
            )  # fmt: skip
            self.built[key] = build(request, self.folder / "-".join(key))
        except EdgedError as problem:
            self.refused[key] = problem.line()


# ---- loops -----------------------------------------------------------------------------------


def timed(data: Data, step: Callable[[np.ndarray, np.ndarray], object]) -> Loop:
    def loop(steps: int) -> float:
        began = time.perf_counter()
        for x, y in islice(cycle(data), steps):
            step(x, y)
        return time.perf_counter() - began

    return loop


def engine_loop(name: str, bundle: Bundle, data: Data, threads: int) -> Loop:
    engine = open_engine(name, bundle, threads)
    engine.begin(LearningRate(1e-3))
    return timed(data, engine.step)


def bare_loop(bundle: Bundle, data: Data, threads: int) -> Loop:
    """What upstream's documentation shows, with the same thread counts; the loss is read each step."""
    api, session_options = training_api.load("api"), ort.session_options(threads)
    state = api.CheckpointState.load_checkpoint(str(bundle.checkpoint))
    models = str(bundle.training_model), state, str(bundle.eval_model)
    module = api.Module(*models, session_options=session_options)
    optimizer = api.Optimizer(str(bundle.optimizer_model), module)
    optimizer.set_learning_rate(1e-3)
    shaped = [(x.reshape(-1, *bundle.input.row), y) for x, y in data]

    def step(x: np.ndarray, y: np.ndarray) -> None:
        float(module(x, y))
        optimizer.step()
        module.lazy_reset_grad()

    return timed(shaped, step)


class TorchLoop:
    """`torch_loop.py` as a child process."""

    def __init__(self, python: str, case: Case, batches: Path) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / "torch_loop.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        order = {"model": case.model.name, "optimizer": case.optimizer, "threads": case.threads,
                 "row": case.model.row, "batches": str(batches)}  # fmt: skip
        self._say(json.dumps(order))

    def _say(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def __call__(self, steps: int) -> float:
        """Take so many steps; the seconds that they took over there."""
        self._say(str(steps))
        answer = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not answer:
            raise SystemExit("PyTorch's process has ended: see above")
        return float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


# ---- measuring -------------------------------------------------------------------------------


def interleaved(loops: dict[str, Loop], turns: int, seconds: float) -> dict[str, list[float]]:
    """Microseconds per step of each loop, turn by turn: `turns` of them, fewer when `seconds` are over."""
    for loop in loops.values():
        loop(STEPS[0])
    longest = max(loop(STEPS[0]) for loop in loops.values()) / STEPS[0]
    steps = min(STEPS[1], max(STEPS[0], int(TURN / longest)))
    times: dict[str, list[float]] = {name: [] for name in loops}
    began = time.perf_counter()
    for turn in range(turns):
        if turn >= LEAST_TURNS and time.perf_counter() - began > seconds:
            break
        # Whoever goes first finds the caches of the other: they change places.
        for name in list(loops) if turn % 2 == 0 else reversed(loops):
            times[name].append(loops[name](steps) / steps * 1e6)
    return times


def ratio(times: dict[str, list[float]], upper: str, lower: str) -> float | None:
    """The median of ratios within a turn: a slow spell of the machine hits all loops alike."""
    if upper not in times or lower not in times:
        return None
    return round(median(a / b for a, b in zip(times[upper], times[lower], strict=True)), 3)


def measure(case: Case, bundles: Bundles, args: argparse.Namespace) -> Row:
    """One row of the table; what cannot be built or run is there with the reason."""
    built, refused = bundles.get(case)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        batches = Path(folder) / "batches.npz"
        x, y = case.model.batches(case.batch, max(4, min(50, 8192 // case.batch)))
        np.savez(batches, x=x, y=y)
        loops, problems = engine_loops(case, built, list(zip(x, y, strict=True)))
        if args.torch:
            loops["torch"] = torch_loop = TorchLoop(args.torch, case, batches)
            stack.callback(torch_loop.close)
        times = interleaved(loops, args.repeats, args.seconds) if loops else {}
        loops.clear()
        memory = peaks(built, batches, times) if built and case.threads == 1 else {}
    return row_of(case, times, memory, refused | problems)


def engine_loops(
    case: Case, bundles: Mapping[str, Bundle], data: Data
) -> tuple[dict[str, Loop], dict[str, str]]:
    """The loops that take a first step, and why the others do not."""
    loops: dict[str, Loop] = {}
    problems: dict[str, str] = {}
    for name, bundle in bundles.items():
        try:
            loop = engine_loop(name, bundle, data, case.threads)
            loop(1)
            loops[name] = loop
        except EdgedError as problem:
            problems[name] = problem.line()
    if "native" in loops:
        loops["bare"] = bare_loop(bundles["native"], data, case.threads)
    return loops, problems


def peaks(bundles: Mapping[str, Bundle], batches: Path, times: dict[str, list[float]]) -> Row:
    """Growth of the peak memory and the whole peak, in MB by engine, and their ratios."""
    found: dict[str, list[float]] = {}
    for name in (name for name in ENGINES if name in times):
        done = subprocess.run(
            [sys.executable, str(HERE / "memory.py"), name, str(bundles[name].path), str(batches)],
            stdout=subprocess.PIPE, check=True, timeout=300,
        )  # fmt: skip
        found[name] = [float(part) for part in done.stdout.split()]
    row: Row = {}
    for i, kind in enumerate(("growth", "peak")):
        row |= {f"{name}_{kind}_mb": round(values[i], 1) for name, values in found.items()}
        if len(found) == len(ENGINES):
            row[f"{kind}_ratio"] = round(found["portable"][i] / found["native"][i], 2)
    return row


def row_of(case: Case, times: dict[str, list[float]], memory: Row, refused: dict[str, str]) -> Row:
    us = {name: round(median(found), 1) for name, found in times.items()}
    return {
        "model": case.model.what,
        "batch": case.batch,
        "threads": case.threads,
        "optimizer": case.optimizer,
        "native_us": us.get("native"),
        "portable_us": us.get("portable"),
        "ratio": ratio(times, "native", "portable"),
        "torch_us": us.get("torch"),
        "torch_ratio": ratio(times, "torch", "portable"),
        "bare_us": us.get("bare"),
        "native_to_bare": ratio(times, "bare", "native"),
        **{name: memory.get(name) for name in MEMORY},
        "refused": refused or None,
    }


# ---- the program -----------------------------------------------------------------------------


def cases(args: argparse.Namespace) -> list[Case]:
    """Every model with every batch and thread count, and more of the dense network."""
    grid = [
        Case(MODELS[name], batch, threads, "adamw")
        for name in args.models
        for threads in args.threads
        for batch in args.batches
    ]
    whole = (args.batches, args.threads) == (list(BATCHES), list(THREADS))
    return grid + ([Case(MODELS["mlp"], *more) for more in MORE] if whole and "mlp" in args.models else [])


COLUMNS = {
    "batch": 5, "threads": 7, "optimizer": 9, "native_us": 9, "portable_us": 11, "ratio": 6,
    "torch_us": 9, "torch_ratio": 11, "native_to_bare": 14,
    "growth_ratio": 12, "peak_ratio": 10,
}  # fmt: skip


def line(row: Row) -> str:
    """A row of the table, refusals under it."""
    cells = [f"{'–' if row[name] is None else row[name]!s:>{width}}" for name, width in COLUMNS.items()]
    reasons = "".join(f"\n    {name} refused: {why}" for name, why in (row["refused"] or {}).items())
    return f"{row['model'][:26]:<26} {' '.join(cells)}{reasons}"


def heading() -> str:
    return f"{'model':<26} {' '.join(f'{name:>{width}}' for name, width in COLUMNS.items())}"


def arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=60, help="turns of each loop at most")
    parser.add_argument("--seconds", type=float, default=8.0, help="time of one case, five turns at least")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with torch: time PyTorch, too")
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    for name, default in (("--batches", BATCHES), ("--threads", THREADS)):
        parser.add_argument(
            name, type=lambda text: [int(part) for part in text.split(",")], default=list(default)
        )
    args = parser.parse_args()
    if unknown := set(args.models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}: there are {', '.join(MODELS)}")
    return args


def main() -> int:
    args = arguments()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        bundles = Bundles(Path(folder))
        for case in cases(args):
            rows.append(measure(case, bundles, args))
            sys.stderr.write(f"{case.model.name} batch {case.batch}: ratio {rows[-1]['ratio']}\n")
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs"
    about = {"onnxruntime": onnxruntime.__version__, "python": platform.python_version(), "machine": machine}
    finish("engines", rows, args, line, heading(), **about)
    return 0


if __name__ == "__main__":
    sys.exit(main())
