"""What models of single keys cost: 1, 10, 100 and 1,000 of them, memory, predictions and loading.

The parts of the daemon that serve keys, in a process of their own, with the standard mlp for 8 features and
as many own models loaded as the row says. `mb` is the resident set with all of them loaded, `kb_each` what
each adds; `p50_us` and `p99_us` a sample's time from its key to its answer, one sample at a time, keys at
random; `load_ms` the median time of loading the model of a key; `folder_kb` what a key takes on the disk.

`python benchmarks/many_keys.py [--keys N...] [--json] [--out FILE]`
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
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from output import finish, options
from resident import resident_mb

from edged import logs
from edged.clock import SystemClock
from edged.config import loader
from edged.device.events import Events
from edged.device.keys import KeyModels
from edged.device.learning.trainer_client import TrainerClient
from edged.device.pipeline import Host, Pipeline
from edged.device.startup.bootstrap import open_samples, with_bundle
from edged.engines.inference import InferenceReader
from edged.storage.files.atomic import MANIFEST, scratch
from edged.storage.models.bundles import Bundle
from edged.storage.models.registry import Registry

if TYPE_CHECKING:
    from edged.device.keys.key_pipeline import KeyPipeline

FEATURES = 8
ASKED = 3000  # predictions that are timed
LOADED = 100  # models whose loading is timed


def measure(keys: int, folder: Path) -> dict[str, Any]:
    """One process with so many own models loaded."""
    logs.configure("error", "json")
    text = {
        "device": {"id": "many"},
        "stream": {"features": FEATURES, "task": "classify", "classes": 4},
        "model": {"per": "key", "keep": keys, "network": "mlp"},
        "storage": {"dir": str(folder)},
    }
    config = with_bundle(loader.from_json(json.dumps(text)))
    with scratch(), ExitStack() as stack:
        registry = stack.enter_context(Registry.open(folder))
        samples = stack.enter_context(open_samples(config))
        bundle = Bundle.open(config.model.bundle or folder / "bundle")
        client = TrainerClient(config)
        stack.callback(client.close)
        host = Host(Events(), SystemClock(), InferenceReader(warm=True), client)
        pipeline = Pipeline(config, bundle, registry, samples, samples, host)
        models = KeyModels(pipeline, bundle, host)
        names = [f"pump-{number}" for number in range(keys)]
        before = resident_mb(os.getpid())
        for name in names:
            models.training.begin(name)
            _promote(models.pipelines.at(name))
        gc.collect()
        mb = resident_mb(os.getpid())
        times = _ask(models, names, config.stream.to_schema().width)
        models.pipelines.close()
        loads = _load(models, names[:LOADED])
        size = sum(file.stat().st_size for file in (folder / "by-key").rglob("*") if file.is_file())
        models.pipelines.close()
    return {
        "what": f"{keys} own models",
        "mb": round(mb, 1),
        "kb_each": round((mb - before) * 1024 / keys, 1),
        "p50_us": round(float(np.percentile(times, 50)) * 1e6, 1),
        "p99_us": round(float(np.percentile(times, 99)) * 1e6, 1),
        "load_ms": round(statistics.median(loads) * 1e3, 2),
        "folder_kb": round(size / 1024 / keys, 1),
    }


def _promote(own: KeyPipeline) -> None:
    """Let a model of the key's own serve, as after its first run: here the same weights once more."""
    registry, folder = own.registry, own.config.storage.dir / "candidates" / "made"
    first = registry.verify(own.predictor.champion.version).parent
    shutil.copytree(first, folder, ignore=shutil.ignore_patterns(MANIFEST))
    record = registry.add(folder, created=0.0, source="training")
    own.models.set_champion(record.version, "benchmark")
    own.predictor.swap(own.models.open(record.version), watch=False)
    own.predictor.previous = None
    own.contest.begin()
    own.close_until_used()


def _ask(models: KeyModels, names: list[str], width: int) -> list[float]:
    """How long single samples take, in seconds."""
    rng = np.random.default_rng(0)
    times = []
    for offset in range(1, ASKED + 1):
        key = names[int(rng.integers(len(names)))]
        x = rng.normal(size=(1, width)).astype(np.float32)
        began = time.perf_counter()
        (share,) = models.serving.split([key])
        share.predictor.predict(np.array([offset]), x, [key])
        times.append(time.perf_counter() - began)
        if not share.own:
            raise SystemExit("a key was answered by the stream's model")
    return times[len(times) // 10 :]


def _load(models: KeyModels, names: list[str]) -> list[float]:
    """How long it takes to load models that have been unloaded, in seconds."""
    times = []
    for name in names:
        began = time.perf_counter()
        models.pipelines.at(name)
        times.append(time.perf_counter() - began)
    return times


def _apart(keys: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="edged-many-") as folder:
        command = [sys.executable, __file__, "--measure", folder, "--keys", str(keys)]
        done = subprocess.run(command, capture_output=True, check=True)
        row: dict[str, Any] = json.loads(done.stdout)
    return row


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 10, 100, 1000], help="own models")
    parser.add_argument("--measure", type=Path, help="measure in this directory, in this process")
    args = parser.parse_args()
    if args.measure is not None:
        print(json.dumps(measure(args.keys[0], args.measure)))
        return
    finish("many_keys", [_apart(keys) for keys in args.keys], args)


if __name__ == "__main__":
    main()
