"""What joining costs in accuracy: recorded streams as one message a value, in any order, with gaps.

    python benchmarks/missing.py --data DIR [--stream occupancy] [--rows N] [--seeds 3] [--json]

`whole`: every row is one message. `split`: each value of a row is a message of its own, shuffled within its
second, and joined by the clock. `gaps`: the same, but a tenth of the values never come and a tenth come 1 to
5 seconds late; they are filled with the last value, and flagged. `gain` is the accuracy over that of the
first model, which is never updated; `kept` is the share of the gain of `whole` that is left, over the first
model of `whole` as well, since flags make a first model better, too. The demand: `split` within 0.3 points of
`whole`, `gaps` keeps 95 %.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from output import finish, options, pairs

from edged import logs
from edged.config import loader
from edged.domain.stream.feature_rules import FeatureRule, JoinRules
from edged.domain.stream.joining import Joining
from edged.domain.stream.observation import Observation
from edged.storage.recordings import Recording, read_stream
from edged.workbench.evaluation.replay import Replay
from edged.workbench.evaluation.score import report
from edged.workbench.recordings.stream import LabelOptions, shape_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from output import Row

    from edged.domain.stream.sample import Reading

STREAMS = {"noaa_weather": 2, "occupancy": 2, "hapt_feat": 12}
CASES = ("whole", "split", "gaps")
GONE, LATE = 0.1, 0.1  # shares of the values
LATEST = 5.0  # seconds


def joined(x: NDArray[np.float32], case: str, rng: np.random.Generator) -> NDArray[np.float32]:
    """Rows `(n, c)` as the join makes them of messages with one value of `x` `(n, d)`, a row a second."""
    n, width = x.shape
    rows, columns = np.divmod(np.arange(n * width), width)
    arrival = rows + rng.random(n * width)
    if case == "gaps":
        fate = rng.random(n * width)
        arrival[fate < LATE] += 1.0 + (LATEST - 1.0) * rng.random(int((fate < LATE).sum()))
        arrival[fate >= 1.0 - GONE] = np.inf
    order = np.argsort(arrival, kind="stable")[: int(np.isfinite(arrival).sum())]
    gaps = case == "gaps"
    features = tuple(FeatureRule(str(i), max_age=1.0 if gaps else None) for i in range(width))
    joining = Joining(JoinRules(features, period=1.0, flags=gaps))
    values = x.astype(np.float64)
    made: dict[int, Sequence[float]] = {}
    for place in order.tolist():
        row, column = int(rows[place]), int(columns[place])
        seen = Observation("k", [(column, float(values[row, column]))])
        for one in joining.accept(seen, row + 0.5, float(arrival[place])):
            made[_row(one)] = list(one.values)
    for one in joining.tick(n + LATEST):
        made[_row(one)] = list(one.values)
    return np.array([made[row] for row in range(n)], np.float32)


def _row(sample: Reading) -> int:
    """The second of a sample; its time is the second's end where none of its values had come."""
    return math.ceil(sample.ts or 0.0) - 1


def replayed(x: NDArray[np.float32], y: NDArray[np.float64], classes: int, seed: int) -> tuple[float, float]:
    """Accuracy of the whole loop on these rows, and of the first model alone."""
    with tempfile.TemporaryDirectory(prefix="edged-missing-") as folder:
        path = Path(folder) / "edged.yaml"
        path.write_text(
            f"device: {{id: missing}}\nstream: {{features: {x.shape[1]}, classes: {classes}}}\n",
            encoding="utf-8",
        )
        config, chosen = loader.load(path, {}), LabelOptions(seed=seed)
        replay = Replay(config, shape_stream(Recording(x, y), config, chosen), chosen, Path(folder) / "state")
        replay.run()
        figures: Mapping[str, Any] = report(replay).to_json()
    return figures["metric"]["accuracy"], figures["frozen"]["accuracy"]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory with the recorded streams")
    parser.add_argument(
        "--stream", action="append", choices=sorted(STREAMS), help="only this one; repeatable"
    )
    parser.add_argument("--rows", type=int, help="only the first rows of each stream")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds")
    args = parser.parse_args()
    logs.configure("error", "auto")
    rows: list[Row] = []
    for name in args.stream or STREAMS:
        recorded = read_stream(args.data / f"{name}.npz")
        x, y = recorded.x[: args.rows], np.asarray(recorded.y)[: args.rows]
        for seed in range(args.seeds):
            first, most = 0.0, 0.0
            for case in CASES:
                rng = np.random.default_rng(seed)
                made = x if case == "whole" else joined(x, case, rng)
                accuracy, frozen = replayed(made, y, STREAMS[name], seed)
                if case == "whole":
                    first, most = frozen, accuracy
                rows.append(
                    {
                        "stream": name,
                        "seed": seed,
                        "case": case,
                        "same": bool(case == "split" and np.array_equal(made, x)) or None,
                        "accuracy": round(accuracy, 4),
                        "frozen": round(frozen, 4),
                        "gain": round(accuracy - frozen, 4),
                        "kept": round((accuracy - first) / (most - first), 3),
                    }
                )
    finish("missing", rows, args, pairs)


if __name__ == "__main__":
    main()
