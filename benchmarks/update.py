"""How long an update takes: 100 new labels, from the order to the swap.

The real trainer process on a real sample log, the real gate and registry: rows are drawn, 50 steps of the
standard network are made, a checkpoint is published, the candidate exported, verified, judged, stored,
made the champion and swapped in. The labels of each round are committed before its time begins. The gate
lets everything pass, so that every round goes the whole way.

The trainer that stays between runs and one that is started for each run take turns, so the ratio means more
than the times.

`python benchmarks/update.py [--rounds R] [--json] [--out FILE]`
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from output import finish, options

from edged import logs
from edged.clock import SystemClock
from edged.config import Config
from edged.device.learning.trainer_client import TrainerClient
from edged.device.promotion.evaluator import CandidateEvaluator
from edged.device.promotion.model_store import ModelStore
from edged.device.serving.predictor import Predictor
from edged.device.startup.bootstrap import with_bundle
from edged.domain.stream.sample import Batch
from edged.domain.training.trainer_messages import RunRequest
from edged.domain.training.training_run import RunOptions
from edged.engines.inference import InferenceReader
from edged.storage.models.bundles import Bundle
from edged.storage.models.registry import Registry
from edged.storage.samples.log import SampleLog

FEATURES, LABELS, STEPS = 16, 100, 50
STAGES = ("train", "judge", "swap", "whole")


class Bench:
    """One device with one kind of trainer."""

    def __init__(self, folder: Path, *, resident: bool) -> None:
        settings: dict[str, Any] = {
            "device": {"id": "bench"},
            "stream": {"features": FEATURES, "classes": 6, "context": []},  # rows go into the log as they are
            "gate": {"min_gain": -1},
            "storage": {"dir": str(folder)},
        }
        given = Config.model_validate(settings)
        training = given.training.with_constants(resident=600.0 if resident else 0.0)
        self.config = with_bundle(given.model_copy(update={"training": training}))
        self.schema = self.config.stream.to_schema()
        self.log = SampleLog.open(folder / "samples.db", self.schema, holdout=self.config.gate.holdout)
        self.registry = Registry.open(folder)
        reader = InferenceReader(warm=True)
        self.evaluator = CandidateEvaluator(self.config, self.registry, self.log, reader)
        self.models = ModelStore(self.config, self.registry, reader, SystemClock())
        bundle = Bundle.open(self.config.model.bundle or folder / "bundle")
        self.predictor = Predictor(
            self.config.serving, self.config.gate, self.schema, self.models.boot(bundle.inference_model)
        )
        self.process = TrainerClient(self.config)
        self._rng, self._next, self._run = np.random.default_rng(0), 1, 0
        self.label(5000)

    def label(self, count: int) -> None:
        """So many new labelled samples, durable."""
        x = self._rng.normal(size=(count, FEATURES)).astype(np.float32)
        y = x[:, :6].argmax(axis=1).astype(float).tolist()
        offsets, now = np.arange(self._next, self._next + count), np.full(count, 1.0)
        nothing: list[Any] = [None] * count
        self.log.commit(Batch(offsets, ["a"] * count, now, now, x, list(y), nothing, nothing))
        self._next += count

    def update(self) -> dict[str, float]:
        """One update; seconds of each stage."""
        self._run += 1
        times = [time.perf_counter()]
        result = self.process.run(RunRequest(self._run, "labels", RunOptions(steps=STEPS)))
        times.append(time.perf_counter())
        if result.steps != STEPS:
            raise SystemExit(f"a run made {result.steps} steps")
        candidate = result.to_candidate()
        evaluation = self.evaluator.evaluate(candidate, self.predictor.champion)
        verdict, served = self.models.add(evaluation)
        times.append(time.perf_counter())
        if served is None:
            raise SystemExit(f"refused: {verdict.reasons}")
        self.models.set_champion(served.version, "bench")
        self.predictor.swap(served)
        times.append(time.perf_counter())
        self.models.record_judged(candidate)  # removes surplus models; the new one serves already
        return dict(zip(STAGES, [*np.diff(times).tolist(), times[-1] - times[0]], strict=True))

    def close(self) -> None:
        """End everything."""
        self.process.close()
        self.registry.close()
        self.log.close()


def measure(rounds: int) -> list[dict[str, Any]]:
    names = {"resident": True, "started anew": False}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        benches = {name: Bench(Path(folder) / name, resident=stays) for name, stays in names.items()}
        for number in range(rounds + 1):
            for name, bench in benches.items():
                bench.label(LABELS)
                times = bench.update()
                if number:  # the first run of a process reads everything for the first time
                    found[name].append(times)
            sys.stderr.write(f"\rround {number}/{rounds}")
        sys.stderr.write("\n")
        for bench in benches.values():
            bench.close()
    rows = []
    for name, updates in found.items():
        for stage in STAGES:
            every = [one[stage] * 1e3 for one in updates]
            anew = [one[stage] * 1e3 for one in found["started anew"]]
            rows.append({
                "what": f"{stage}, trainer {name}",
                "ms": round(statistics.median(every), 1),
                "p90_ms": round(float(np.percentile(every, 90)), 1),
                "ratio": round(statistics.median(np.divide(every, anew).tolist()), 3),
            })  # fmt: skip
    return rows


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    logs.configure("error")
    finish("update", measure(args.rounds), args)


if __name__ == "__main__":
    main()
