"""The streaming drift detectors: what an update costs, how often they cry wolf, how soon they see a change.

Cost: microseconds an update on 0/1 errors, and the ratio to the least that any detector could do in
Python, an object whose `update` adds the reading to a running mean, timed in turn with it; best of
several repeats. False alarms: drifts per 50,000 stationary 0/1 errors, for several error rates, and
where the errors come in bursts (rate x mean length).
Delay: median readings from a change of the error rate to the drift; `missed` within 5,000.
Also the cost of a row of the input detector, per feature.

`python benchmarks/drift.py [--streams N] [--json] [--out FILE]`
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edged.domain.drift.adwin import ADWIN, CorrelatedADWIN
from edged.domain.drift.inputs import InputDrift
from edged.domain.drift.live import default_detector
from edged.domain.drift.signals import Level

RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
BURSTS = ((0.1, 2), (0.1, 5), (0.1, 20))
CHANGES = ((0.02, 0.1), (0.1, 0.2), (0.1, 0.4), (0.3, 0.5), (0.45, 0.6))
STATIONARY = 50_000
BEFORE = AFTER = 5000
TIMED = 20_000
REPEATS = 7


class RunningMean:
    """The baseline: one reading, one addition, nothing watched."""

    def __init__(self) -> None:
        self.n = 0
        self.mean = 0.0

    def update(self, value: float) -> Level:
        """Take in one reading."""
        self.n += 1
        self.mean += (value - self.mean) / self.n
        return Level.NONE


def candidates() -> dict[str, Callable[[], Any]]:
    """Both kinds of ADWIN at the literature's defaults, and where only a rise is a drift."""
    return {
        "adwin": ADWIN,
        "adwin_correlated": CorrelatedADWIN,
        "adwin (quiet)": lambda: ADWIN(mode="up"),
        "adwin_correlated (quiet)": default_detector,
    }


def errors(rate: float, n: int, *seed: int) -> list[float]:
    return [1.0 if v else 0.0 for v in np.random.default_rng(seed).random(n) < rate]


def seconds(make: Callable[[], Any], readings: list[float]) -> float:
    update = make().update
    start = time.perf_counter()
    for reading in readings:
        update(reading)
    return (time.perf_counter() - start) / len(readings)


def cost(make: Callable[[], Any]) -> dict[str, float]:
    readings = errors(0.2, TIMED, 0)
    pairs = [(seconds(RunningMean, readings), seconds(make, readings)) for _ in range(REPEATS)]
    least, own = min(p[0] for p in pairs), min(p[1] for p in pairs)
    return {"us": round(own * 1e6, 3), "ratio_to_running_mean": round(own / least, 2)}


def bursts(rate: float, length: float, n: int, *seed: int) -> list[float]:
    """Errors that come `length` in a row on the mean: a chain of two states."""
    begin, end, wrong, out = rate / (1 - rate) / length, 1 / length, False, []
    for v in np.random.default_rng(seed).random(n).tolist():
        wrong = v >= end if wrong else v < begin
        out.append(1.0 if wrong else 0.0)
    return out


def alarms(make: Callable[[], Any], streams: list[list[float]]) -> float:
    found = 0
    for readings in streams:
        update = make().update
        found += sum(update(v) is Level.DRIFT for v in readings)
    return round(found / len(streams), 2)


def delay(make: Callable[[], Any], before: float, after: float, streams: int) -> dict[str, Any]:
    delays = []
    for seed in range(streams):
        update = make().update
        for value in errors(before, BEFORE, seed, 1):
            update(value)
        levels = (update(value) is Level.DRIFT for value in errors(after, AFTER, seed, 2))
        delays += [at for at, drifted in enumerate(levels, 1) if drifted][:1]
    median = statistics.median(delays) if delays else None
    return {"median": median, "missed": streams - len(delays)}


def row_cost(features: int) -> float:
    """Microseconds a row and feature of the input detector, reference and tests included."""
    x = np.random.default_rng(0).standard_normal((8192, features), np.float32)
    best = float("inf")
    for _ in range(3):
        watch, start = InputDrift(features), time.perf_counter()
        watch.update(x, np.arange(len(x)))
        best = min(best, time.perf_counter() - start)
    return round(best / len(x) / features * 1e6, 3)


def measure(streams: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/drift.py", *sys.argv[1:]]),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "streams": streams,
        "detectors": {},
    }
    stationary = {
        str(rate): [errors(rate, STATIONARY, seed, int(rate * 1000)) for seed in range(streams)]
        for rate in RATES
    } | {
        f"{rate} in bursts of {length}": [bursts(rate, length, STATIONARY, seed) for seed in range(streams)]
        for rate, length in BURSTS
    }
    for name, make in candidates().items():
        result["detectors"][name] = {
            "update": cost(make),
            "false_alarms_per_50000": {kind: alarms(make, drawn) for kind, drawn in stationary.items()},
            "delay": {f"{a} -> {b}": delay(make, a, b, streams) for a, b in CHANGES},
        }
    result["inputs_us_per_row_and_feature"] = {str(d): row_cost(d) for d in (1, 16, 64)}
    return result


def show(result: dict[str, Any]) -> None:
    print("µs an update (times a running mean) | drifts per 50,000 stationary errors | median delay")
    print(
        " " * 26,
        *(f"{rate:>6}" for rate in RATES),
        *(f"{r}x{n}" for r, n in BURSTS),
        " ",
        *(f"{a}->{b}" for a, b in CHANGES),
    )
    for name, row in result["detectors"].items():
        spent = row["update"]
        rates = [f"{v:6.2f}" for v in row["false_alarms_per_50000"].values()]
        delays = [f"{d['median']} ({d['missed']} missed)" for d in row["delay"].values()]
        print(f"{name:26}", *rates, "|", *delays)
        print(f"{'':26} {spent['us']} µs, {spent['ratio_to_running_mean']} times a running mean")
    print("inputs, µs a row and feature:", result["inputs_us_per_row_and_feature"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=10, help="streams for each figure")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    arguments = parser.parse_args()
    result = measure(arguments.streams)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
