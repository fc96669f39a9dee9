"""How long a prediction takes: idle, while the trainer trains, and while models are swapped.

The daemon's own serving loop gets single samples at a fixed rate; the latency of each is the time
from having its values, to which the context is added, to having its encoded prediction. Blocks of the
three states follow each other in one run, round after round. The trainer is the real process on a real
sample log; a swap verifies, loads and warms up a model from the registry on another thread, as the daemon
does.

`added_us` of the swaps: the worst prediction within 20 ms of each swap beside the worst of as many
windows of the same length in the idle blocks, compared percentile by percentile. `longest_without_pause_us`:
processor time of the pieces of a swap, of which a prediction waits for one at most.

The model has the weights that it was built with, and counts as a trained one: its experts are mixed with the
head, which has learned 5,000 labels. With `--beside FOLDER`, another checkout of this repository, blocks of
both follow each other in one run instead, idle and while training; `ratio` is the median of theirs.

`python benchmarks/serving.py [--rate N] [--seconds S] [--rounds R] [--beside FOLDER] [--json] [--out FILE]`
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from output import finish, options

from edged import logs
from edged.clock import SystemClock
from edged.config import Config
from edged.daemon import SWITCH_INTERVAL
from edged.device import BREATH
from edged.device.events import Events, Listener
from edged.device.learning.trainer_client import TrainerClient
from edged.device.pipeline import Host, Pipeline
from edged.device.serving.label_requester import LabelRequester
from edged.device.serving.worker import ServingWorker
from edged.device.startup.bootstrap import with_bundle
from edged.domain.judging.latencies import Latencies
from edged.domain.labels.label_requests import LabelRequests
from edged.domain.stream.sample import Batch
from edged.domain.stream.temporal_context import TemporalContext
from edged.domain.training.trainer_messages import RunProgress, RunRequest
from edged.domain.training.training_run import ModelData, RunOptions
from edged.engines.inference import InferenceModel
from edged.host.systemd import Notifier, Watchdog
from edged.storage.models.bundles import Bundle
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.drift.signals import DriftSignal
    from edged.domain.protocols import ServedModel
    from edged.domain.training.message import Message

FEATURES = 64
AROUND = 0.02
SWAP_EVERY = 0.1
WARM = 0.3  # seconds at the beginning of a block that do not count, for a process that stood still before
STATES = ("idle", "training", "swapping")
ANSWERING = """
import json, sys, tempfile
from pathlib import Path
import serving
serving.logs.configure("error")
with tempfile.TemporaryDirectory() as folder:
    bench = serving.Bench(Path(folder))
    for line in sys.stdin:
        state, seconds, rate, warm = json.loads(line)
        block = bench.load if state == "idle" else bench.while_training
        found = block(warm + seconds, rate)[int(warm * rate):, 1]
        print(json.dumps((found * 1e6).tolist()), flush=True)
    bench.close()
"""


class Reader:
    """Loads models as the daemon does, with pauses that take notes."""

    def __init__(self, breath: Breath) -> None:
        self._breath = breath

    def load(self, path: Path) -> InferenceModel:
        model = InferenceModel(path, breathe=self._breath)
        model.warm_up()
        return model

    def breathe(self) -> None:
        self._breath()


class Bystander:
    """A supervisor that lets everything be as it is."""

    def wake(self) -> None: ...

    def drifted(self, signal: DriftSignal) -> None: ...

    def fallen(self) -> None: ...

    def probation_ended(self, version: int, passed: bool) -> None: ...

    def champion_failed(self, version: int, reason: str) -> None: ...

    def rescue(self, failing: ServedModel, reason: str) -> ServedModel | None:
        return None


class Breath:
    """Pauses as the daemon does, and notes the processor time of what ran before each pause.

    A prediction that comes during a swap waits for one such piece at most. Its processor time does not
    count when the machine itself stands still, as rented ones do for many milliseconds.
    """

    def __init__(self) -> None:
        self.pieces: list[float] = []
        self._began = 0.0

    def begin(self) -> None:
        """The swapping thread starts to work."""
        self._began = time.thread_time()

    def __call__(self) -> None:
        """The end of a piece."""
        self.pieces.append(time.thread_time() - self._began)
        time.sleep(BREATH)
        self._began = time.thread_time()


class Bench(Listener):
    """A serving loop with everything behind it, and a load that it gets."""

    def __init__(self, folder: Path) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL)
        self.breathe = Breath()
        self.config = with_bundle(
            Config.model_validate({
                "device": {"id": "bench"},
                "stream": {"features": FEATURES, "classes": 6},
                "model": {"hidden": [128, 64]},
                "training": {"max_write_rate": None},
                "storage": {"dir": str(folder)},
            })
        )  # fmt: skip
        self.schema = self.config.stream.to_schema()
        self.context = TemporalContext.of(self.schema)
        self.log = SampleLog.open(folder / "samples.db", self.schema)
        self._fill()
        self.registry = Registry.open(folder)
        bundle = Bundle.open(self.config.model.bundle or folder / "bundle")
        host = Host(Events(), SystemClock(), Reader(self.breathe), TrainerClient(self.config))
        stream = Pipeline(self.config, bundle, self.registry, self.log, self.log, host)
        self.models, self.predictor = stream.models, stream.predictor
        self.version = self._trained(folder)
        self.predictor.swap(self.models.open(self.version), watch=False)
        self.done: list[float] = []
        self.loop = ServingWorker(
            self.predictor, batch=256, boot=1, supervisor=Bystander(),
            requester=LabelRequester(LabelRequests(0.0), self.schema, SystemClock(), Events()),
            events=Events(self), watchdog=Watchdog(Notifier(), ("serve",)), latencies=Latencies(),
        )  # fmt: skip
        self.loop.start()
        self._offset = 0
        gc.collect()
        gc.freeze()

    def _fill(self) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(5000, FEATURES)).astype(np.float32)
        y = x[:, :6].argmax(axis=1).astype(float).tolist()
        now = np.full(5000, 1.0)
        rows = self._in_context(["a"] * 5000, x)
        self.log.commit(
            Batch(np.arange(1, 5001), ["a"] * 5000, now, now, rows, list(y), [None] * 5000, [None] * 5000)
        )
        self.x = x

    def _trained(self, folder: Path) -> int:
        """The version of a model that counts as trained: the first one again."""
        staging = folder / ".staging-bench"
        shutil.copytree(folder / "models" / "1", staging)
        data = ModelData(consumed=5000)
        return self.registry.add(staging, parent=1, created=1.0, source="training", data=data).version

    def _in_context(self, keys: list[str], x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rows as ingest hands them over."""
        return x if self.context is None else self.context.extend(keys, x)

    def predicted(self, payloads: list[bytes]) -> None:
        self.done.extend([time.monotonic()] * len(payloads))

    def load(self, seconds: float, rate: float) -> NDArray[np.float64]:
        """Send samples at `rate`; `(n, 2)`: when each was handed over, and its latency."""
        count = int(seconds * rate)
        self.done = []
        sent = np.zeros(count)
        begin = time.monotonic() + 0.01
        for i in range(count):
            late = max(0.0, time.monotonic() - (begin + i / rate))  # one that took long delays the next
            while (pause := begin + i / rate - time.monotonic()) > 0:
                time.sleep(pause)
            self._offset += 1
            now = time.monotonic()
            row = self._in_context(["a"], self.x[i % 5000, None])
            taken = time.monotonic() - now
            batch = Batch(
                np.array([self._offset]), ["a"], np.array([now]), np.array([now]), row, [None], [None], [None]
            )
            sent[i] = time.monotonic() - taken - late  # making the batch does not count
            self.loop.submit(batch, np.array([now]))
        deadline = time.monotonic() + 5
        while len(self.done) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        if len(self.done) != count:
            raise SystemExit(f"{count - len(self.done)} predictions are missing")
        return np.stack([sent, np.array(self.done) - sent], axis=1)

    def while_training(self, seconds: float, rate: float) -> NDArray[np.float64]:
        """The same while the trainer takes steps all the time."""
        process, started, steps = TrainerClient(self.config), threading.Event(), [0]

        def on_message(message: Message) -> None:
            if isinstance(message, RunProgress):
                steps[0] = message.step
                started.set()

        def train() -> None:
            try:
                process.run(RunRequest(1, "command", RunOptions(steps=1_000_000)), on_message)
            except Exception as problem:  # noqa: BLE001  it is cancelled at the end of the block
                sys.stderr.write(f"{type(problem).__name__} ")

        thread = threading.Thread(target=train)
        thread.start()
        if not started.wait(30):
            raise SystemExit("the trainer did not start")
        before = steps[0]
        found = self.load(seconds, rate)
        if steps[0] <= before:
            raise SystemExit("the trainer did not train during the block")
        process.cancel()
        thread.join()
        process.close()
        return found

    def while_swapping(self, seconds: float, rate: float) -> tuple[NDArray[np.float64], list[float]]:
        """The same while the model is loaded again and swapped ten times a second."""
        swaps: list[float] = []
        stop = threading.Event()

        def swap() -> None:
            while not stop.wait(SWAP_EVERY):
                began = time.monotonic()
                self.breathe.begin()
                self.predictor.swap(self.models.open(self.version), watch=False)
                self.breathe()
                swaps.append((began + time.monotonic()) / 2)

        thread = threading.Thread(target=swap)
        self.breathe.pieces.clear()
        thread.start()
        found = self.load(seconds, rate)
        stop.set()
        thread.join()
        return found, swaps

    def close(self) -> None:
        """End everything."""
        self.loop.stop()
        self.registry.close()
        self.log.close()


class Checkout:
    """The serving loop of a checkout of this repository, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join(str(part) for part in (folder / "benchmarks", folder))
        self._child = subprocess.Popen(
            [sys.executable, "-c", ANSWERING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=folder, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def block(self, state: str, seconds: float, rate: float) -> NDArray[np.float64]:
        """Latencies of a block, in microseconds."""
        if self._child.stdin is None or self._child.stdout is None:
            raise ValueError("the pipes of a checkout are closed")
        print(json.dumps([state, seconds, rate, WARM]), file=self._child.stdin, flush=True)
        return np.asarray(json.loads(self._child.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._child.communicate()


def compare(other: Path, seconds: float, rate: float, rounds: int) -> list[dict[str, Any]]:
    """Latencies of this checkout beside those of another one, block by block."""
    found: dict[tuple[str, int], list[NDArray[np.float64]]] = {}
    sides = [Checkout(Path(__file__).parents[1]), Checkout(other.resolve())]
    for side in sides:
        side.block("idle", 1.0, rate)
    for number in range(rounds):
        for state in ("idle", "training"):
            for place in (0, 1) if number % 2 else (1, 0):
                found.setdefault((state, place), []).append(sides[place].block(state, seconds, rate))
    for side in sides:
        side.close()
    rows: list[dict[str, Any]] = []
    for state in ("idle", "training"):
        for share in (50, 99):
            ours, theirs = (
                np.array([np.percentile(block, share) for block in found[state, place]]) for place in (0, 1)
            )
            rows.append({
                "what": f"{state} p{share}",
                "us": round(float(np.median(ours)), 1),
                "beside_us": round(float(np.median(theirs)), 1),
                "ratio": round(float(np.median(ours / theirs)), 3),
                "ratio_of_medians": round(float(np.median(ours) / np.median(theirs)), 3),
            })  # fmt: skip
    return rows


def worst_near(found: NDArray[np.float64], moments: list[float]) -> list[float]:
    """The largest latency within `AROUND` of each moment."""
    worst = []
    for moment in moments:
        near = found[np.abs(found[:, 0] - moment) <= AROUND, 1]
        if len(near):
            worst.append(float(near.max()))
    return worst


def _percentiles(seconds: list[float]) -> dict[str, float]:
    """In microseconds."""
    found = np.percentile(seconds, [50, 95, 99, 100]) * 1e6
    names = ("p50", "p95", "p99", "max")
    return {name: round(float(value), 1) for name, value in zip(names, found, strict=True)}


def measure(seconds: float, rate: float, rounds: int) -> list[dict[str, Any]]:
    found: dict[str, list[NDArray[np.float64]]] = {state: [] for state in STATES}
    pieces: list[float] = []
    at_swaps: list[float] = []
    at_idle: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        bench.load(1.0, rate)
        for number in range(rounds):
            idle = bench.load(seconds, rate)
            found["idle"].append(idle[:, 1])
            found["training"].append(bench.while_training(seconds, rate)[:, 1])
            swapping, swaps = bench.while_swapping(seconds, rate)
            found["swapping"].append(swapping[:, 1])
            at_swaps += worst_near(swapping, swaps)
            pieces += bench.breathe.pieces
            begin, end = idle[0, 0] + AROUND, idle[-1, 0] - AROUND
            at_idle += worst_near(idle, np.linspace(begin, end, len(swaps)).tolist())
            p99 = {state: np.percentile(parts[-1], 99) * 1e6 for state, parts in found.items()}
            sys.stderr.write(f"round {number + 1}: p99 µs { ({k: round(v) for k, v in p99.items()}) }\n")
        bench.close()
    rows: list[dict[str, Any]] = []
    for state, parts in found.items():
        ratios = [
            np.percentile(p, 99) / np.percentile(i, 99) for p, i in zip(parts, found["idle"], strict=True)
        ]
        every = np.concatenate(parts)
        rows.append({
            "what": state,
            "p50_us": round(float(np.percentile(every, 50)) * 1e6, 1),
            "p99_us": round(float(np.percentile(every, 99)) * 1e6, 1),
            "worst_us": round(float(every.max()) * 1e6, 1),
            "ratio": round(float(statistics.median(ratios)), 3),
        })  # fmt: skip
    rows.append({
        "what": "swap",
            "swaps": len(at_swaps),
            "longest_without_pause_us": _percentiles(pieces),
            "worst_in_window_us": _percentiles(at_swaps),
            "idle_worst_in_window_us": _percentiles(at_idle),
            "added_us": {
                name: round(value - _percentiles(at_idle)[name], 1)
                for name, value in _percentiles(at_swaps).items()
            },
            "ratio": round(float(np.percentile(at_swaps, 99) / np.percentile(at_idle, 99)), 3),
    })  # fmt: skip
    return rows


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="another checkout, to compare with")
    args = parser.parse_args()
    logs.configure("error")
    if args.beside is not None:
        other, args.beside = args.beside, None  # no path of this machine belongs to the results
        finish("serving", compare(other, args.seconds, args.rate, args.rounds), args)
        return
    finish("serving", measure(args.seconds, args.rate, args.rounds), args)


if __name__ == "__main__":
    main()
