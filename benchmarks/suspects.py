"""Falsified labels among those that a review of labels suspects most.

A tenth of the labels of a recorded stream, drawn at random, names another class. The newest 20,000 labels are
reviewed as a device reviews them. `found` is the share of the falsified ones among the first 15 % of the list
(the demand: 0.8), `first` how many of its first 100 labels are falsified, both the mean of the seeds;
`separable` is the accuracy of the review's own answers against the true labels: where that is low, nobody
could tell a falsified label from a rare one.

    python benchmarks/suspects.py --data DIR [--streams elec2,hapt6] [--seeds 3] [--json]
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from learning import read
from output import finish, options, pairs

from edged.config import Config
from edged.domain.labels.label_review import review
from edged.domain.standard_bundle import CONTEXT
from edged.domain.stream.temporal_context import TemporalContext

if TYPE_CHECKING:
    from learning import Recording
    from output import Row

STREAMS = ("digits", "hapt6", "hapt_feat", "occupancy", "noaa_weather", "elec2")

FALSIFIED, LISTED, FIRST, MOST = 0.1, 0.15, 100, 20_000


def reviewed(stream: Recording, seed: int) -> Row:
    """One stream with falsified labels of one seed."""
    shape = {"features": stream.x.shape[1], "task": "classify", "classes": stream.classes}
    config = Config.model_validate({"device": {"id": "benchmark"}, "stream": shape})
    context = TemporalContext.of(config.stream.with_context(CONTEXT).to_schema())
    x = stream.x if context is None else context.extend(["stream"] * len(stream.x), stream.x)
    x, truth = np.ascontiguousarray(x[-MOST:], np.float32), stream.y[-MOST:]
    rng = np.random.default_rng(seed)
    wrong = (truth + rng.integers(1, stream.classes, len(truth))) % stream.classes
    falsified = rng.random(len(truth)) < FALSIFIED
    labels = np.where(falsified, wrong, truth)
    began = time.perf_counter()
    found = review(x, labels, stream.classes, stream.x.shape[1])
    seconds = time.perf_counter() - began
    if found is None:
        raise ValueError(f"{stream.name} has too few labels")
    order = np.argsort(-found.suspicion(labels), kind="stable")
    listed = falsified[order[: round(LISTED * len(order))]]
    return {
        "labels": len(truth),
        "found": float(listed.sum() / falsified.sum()),
        "first": float(falsified[order[:FIRST]].sum()),
        "separable": float((found.p.argmax(axis=1) == truth).mean()),
        "seconds": seconds,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory with the recorded streams")
    parser.add_argument("--streams", default=",".join(STREAMS), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    args = parser.parse_args()
    rows: list[Row] = []
    for name in args.streams.split(","):
        stream = read(name, args.data)
        each = [reviewed(stream, seed) for seed in range(args.seeds)]
        means = {key: round(float(np.mean([row[key] for row in each])), 3) for key in each[0]}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        least = round(min(float(row["found"]) for row in each), 3)
        rows.append({"stream": name, "seeds": args.seeds, **means, "least_found": least, "peak_mb": peak})
    finish("suspects", rows, args, pairs)


if __name__ == "__main__":
    main()
