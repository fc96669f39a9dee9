"""What a fleet learns, against one model that is trained on all rows: `edged fleet sim` on `hapt_feat`.

One device for each user: 24 train, six take no part. Each has real engines, a connection of its own to a real
mosquitto, and the real coordinator. `unseen` is the accuracy of the fleet's model on all rows of the six,
`central` that of one network trained on the rows of the 24 together with the same optimizer, rate and
batches, both the mean of several seeds; `global` and `mixed` are means over the 24 on rows that nothing was
learned from or chosen by, with the worst user. `ratio` is what a device sends in a round, with its line, by
4 bytes a parameter. In rows with harm 10 % of the devices turn their updates around (`flip`) or send them ten
times as large (`scale`).

`python benchmarks/fleet_learning.py --data DIR [--rounds R] [--seeds N] [--classes N] [--json] [--out FILE]`
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from output import finish, options

from edged import logs
from edged.fleet.simulation.simulation import SimulationPlan, central_accuracy, simulate

DYNAMIC = {"dynamic": 0.1, "learning_rate": 0.01}
TRIMMED = {"reduce": "trimmed_mean"}
TRIMMED_MORE = {**TRIMMED, "trim": 0.2}
LEFT_OUT = {**TRIMMED, "opposed": "leave_out"}
FLIP = {"poison": 0.1, "attack": "flip"}
SCALE = {"poison": 0.1, "attack": "scale"}
CASES: dict[str, dict[str, Any]] = {
    "mean": {},
    "dynamic": DYNAMIC,
    "dynamic, trimmed mean": DYNAMIC | TRIMMED,
    "dynamic, trimmed mean, 10 % flip": DYNAMIC | TRIMMED | FLIP,
    "dynamic, trimmed mean, 10 % scale": DYNAMIC | TRIMMED | SCALE,
    "trimmed mean": TRIMMED,
    "trimmed mean, 10 % flip": TRIMMED | FLIP,
    "trimmed mean, 10 % scale": TRIMMED | SCALE,
    "trimmed mean, opposed left out": LEFT_OUT,
    "trimmed mean, opposed left out, 10 % flip": LEFT_OUT | FLIP,
    "trimmed mean, opposed left out, 10 % scale": LEFT_OUT | SCALE,
    "mean, 10 % flip": FLIP,
    "mean, 10 % scale": SCALE,
    "trimmed mean 20 %": TRIMMED_MORE,
    "trimmed mean 20 %, 10 % flip": TRIMMED_MORE | FLIP,
}


def recording(data: Path, classes: int, folder: Path) -> Path:
    """`hapt_feat` with its first classes: from 6 on they are the short moves between the others."""
    with np.load(data / "hapt_feat.npz") as whole:
        kept = whole["y"] < classes
        path = folder / "hapt_feat.npz"
        np.savez(path, X=whole["X"][kept], y=whole["y"][kept], user=whole["user"][kept])
    return path


def rows(plan: SimulationPlan, seeds: int) -> Iterator[dict[str, Any]]:
    """A row for each case."""
    central = [central_accuracy(replace(plan, seed=seed)) for seed in range(seeds)]
    yield {"case": "central", "unseen": float(np.mean(central)), "seeds": seeds, "each": central}
    for name, case in CASES.items():
        yield {"case": name} | measured([replace(plan, seed=seed, **case) for seed in range(seeds)])


def measured(plans: list[SimulationPlan]) -> dict[str, Any]:
    """Means over the runs of one case; the worst user of all of them."""
    reports: list[Mapping[str, Any]] = [simulate(plan).to_json() for plan in plans]
    finals = [report["final"] for report in reports]
    unseen = [final["unseen"] for final in finals]
    return {
        "unseen": float(np.mean(unseen)),
        "seeds": len(plans),
        "each": unseen,
        "global": float(np.mean([final["global"]["mean"] for final in finals])),
        "global_worst": min(final["global"]["worst"] for final in finals),
        "mixed": float(np.mean([final["mixed"]["mean"] for final in finals])),
        "mixed_worst": min(final["mixed"]["worst"] for final in finals),
        "ratio": float(np.mean([report["bytes"]["ratio"] for report in reports])),
        "bytes": float(np.mean([report["bytes"]["mean"] for report in reports])),
        "rounds": len(reports[0]["rounds"]),
        "seconds": float(np.mean([report["seconds"] for report in reports])),
        "by_round": np.mean([[e["unseen"] for e in report["rounds"]] for report in reports], axis=0).tolist(),
    }


def main() -> int:
    """Entry point."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory of the recorded streams")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3, help="of the central training, and of each case")
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    args = parser.parse_args()
    for name in set(CASES) - set(args.cases):
        del CASES[name]
    logs.configure("error", "console")
    with tempfile.TemporaryDirectory(prefix="fleet-learning-") as folder:
        plan = SimulationPlan(
            recording(args.data, args.classes, Path(folder)), key="user", unseen=6, rounds=args.rounds,
            epochs=5, learning_rate=0.02, batch_size=16, optimizer="sgd_momentum", central=False,
            clip_norm=10.0, alone=False,
        )  # fmt: skip
        found = []
        for row in rows(plan, args.seeds):
            found.append(row)
            sys.stderr.write(f"{row}\n")
        finish("fleet_learning", found, args, classes=str(args.classes))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
