"""What a fleet learns, against one model that is trained on all rows: `edged fleet sim` on `hapt_feat`.

One device for each user: 24 train, six take no part. Each has real engines, a connection of its own to a real
mosquitto, and the real coordinator. `unseen` is the accuracy of the fleet's model on all rows of the six,
`central` that of one network trained on the rows of the 24 together with the same optimizer, rate and
batches, the mean of several seeds; `global` and `mixed` are means over the 24 on rows that nothing was
learned from or chosen by, with the worst user. `ratio` is what a device sends in a round, with its line, by
4 bytes a parameter. In rows with harm 10 % of the devices turn their updates around (`flip`) or send them ten
times as large (`scale`).

`python benchmarks/fleet_learning.py --data DIR [--rounds R] [--seeds N] [--classes N] [--json] [--out FILE]`
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from output import finish, options

from edged import logs
from edged.fleetsim.simulation import Plan, central_accuracy, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES: dict[str, dict[str, Any]] = {
    "mean": {},
    "dynamic": {"dynamic": 0.1, "learning_rate": 0.01},
    "dynamic, trimmed mean": {"dynamic": 0.1, "learning_rate": 0.01, "reduce": "trimmed_mean"},
    "dynamic, trimmed mean, 10 % flip": {
        "dynamic": 0.1,
        "reduce": "trimmed_mean",
        "poison": 0.1,
        "attack": "flip",
    },
    "dynamic, trimmed mean, 10 % scale": {
        "dynamic": 0.1,
        "reduce": "trimmed_mean",
        "poison": 0.1,
        "attack": "scale",
    },
    "trimmed mean": {"reduce": "trimmed_mean"},
    "trimmed mean, 10 % flip": {"reduce": "trimmed_mean", "poison": 0.1, "attack": "flip"},
    "trimmed mean, 10 % scale": {"reduce": "trimmed_mean", "poison": 0.1, "attack": "scale"},
    "mean, 10 % flip": {"poison": 0.1, "attack": "flip"},
    "mean, 10 % scale": {"poison": 0.1, "attack": "scale"},
    "trimmed mean 20 %": {"reduce": "trimmed_mean", "trim": 0.2},
    "trimmed mean 20 %, 10 % flip": {"reduce": "trimmed_mean", "trim": 0.2, "poison": 0.1, "attack": "flip"},
}


def recording(data: Path, classes: int, folder: Path) -> Path:
    """`hapt_feat` with its first classes: from 6 on they are the short moves between the others."""
    with np.load(data / "hapt_feat.npz") as whole:
        kept = whole["y"] < classes
        path = folder / "hapt_feat.npz"
        np.savez(path, X=whole["X"][kept], y=whole["y"][kept], user=whole["user"][kept])
    return path


def rows(plan: Plan, seeds: int) -> Iterator[dict[str, Any]]:
    """A row for each case."""
    central = [central_accuracy(replace(plan, seed=seed)) for seed in range(seeds)]
    yield {"case": "central", "unseen": float(np.mean(central)), "seeds": seeds, "each": central}
    for name, case in CASES.items():
        report = simulate(replace(plan, **case))
        final = report["final"]
        yield {
            "case": name,
            "unseen": final["unseen"],
            "global": final["global"]["mean"],
            "global_worst": final["global"]["worst"],
            "mixed": final["mixed"]["mean"],
            "mixed_worst": final["mixed"]["worst"],
            "ratio": report["bytes"]["ratio"],
            "bytes": report["bytes"]["mean"],
            "rounds": len(report["rounds"]),
            "seconds": report["seconds"],
            "by_round": [entry["unseen"] for entry in report["rounds"]],
        }


def main() -> int:
    """Entry point."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory of the recorded streams")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3, help="of the central training")
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    args = parser.parse_args()
    for name in set(CASES) - set(args.cases):
        del CASES[name]
    logs.configure("error", "console")
    with tempfile.TemporaryDirectory(prefix="fleet-learning-") as folder:
        plan = Plan(
            recording(args.data, args.classes, Path(folder)), key="user", unseen=6, rounds=args.rounds,
            epochs=5, learning_rate=0.02, batch_size=16, optimizer="sgd_momentum", central=False,
        )  # fmt: skip
        found = []
        for row in rows(plan, args.seeds):
            found.append(row)
            sys.stderr.write(f"{row}\n")
        finish("fleet_learning", found, args, classes=str(args.classes))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
