"""Whether predictions keep what `serving.coverage` promises, beside plain adaptive conformal inference.

Rows of edged are `edged evaluate` with its defaults and `serving.coverage`, labels 150 samples late. Those of
adaptive conformal inference (Gibbs and Candès 2021) are made of the same probabilities with the same labels
at the same times: 1 - p is the score of a class, the threshold a quantile of the newest 1,000 labelled
scores, and each label moves its level by `STEP`. Shares in percent: means of the seeds; and the extremes of
all seeds in 2,000 consecutive rows, for windows that begin anywhere, and for those one behind the other
(`apart`).

    python benchmarks/coverage.py [--data DIR] [--streams elec2,hapt6] [--seeds 3] [--coverage 0.9]
"""

from __future__ import annotations

import sys
import tempfile
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from learning import DELAY, RECORDED, STREAMS, Recording, read
from output import finish, options

from edged.config import Config
from edged.domain.judging.metrics import calibration_error
from edged.storage.recordings import rows
from edged.workbench.evaluation.meters import PromiseMeter
from edged.workbench.evaluation.replay import Replay
from edged.workbench.evaluation.stream import LabelOptions, Stream, shape_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from edged.domain.judging.predictions import Predictions

STEP, SCORES, FEWEST = 0.005, 1000, 20
WINDOW = 2000  # rows in which the share of sets with the truth is looked at


class Probabilities(PromiseMeter):
    """Keeps the probabilities, too, and which rows were predicted at once."""

    def __init__(self, stream: Stream, classes: int) -> None:
        super().__init__(stream)
        self.blocks: list[NDArray[np.int64]] = []
        self.output = np.zeros((len(stream), classes), np.float32)
        self.sets = np.zeros((len(stream), classes), bool)

    def add(self, index: NDArray[np.int64], made: Predictions) -> None:
        """The predictions of these rows."""
        super().add(index, made)
        self.blocks.append(index)
        self.output[index] = made.output
        if made.promise is not None:
            self.sets[index] = made.promise.sets


def running_shares(covered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares of `covered` `(n, targets)` in any `WINDOW` consecutive rows, or in all: `(m, targets)`."""
    width = min(WINDOW, len(covered))
    sums = np.concatenate([np.zeros((1, covered.shape[1])), covered.cumsum(axis=0)])
    return np.asarray((sums[width:] - sums[:-width]) / width)


def replayed(stream: Recording, seed: int, coverage: float) -> Probabilities:
    """What `edged evaluate` predicts of a stream."""
    config = Config.model_validate({
        "device": {"id": "benchmark"}, "serving": {"coverage": coverage},
        "stream": {"features": stream.x.shape[1], "task": "classify", "classes": stream.classes},
    })  # fmt: skip
    how = LabelOptions(DELAY, 1.0, seed, stream.pretrain)
    with tempfile.TemporaryDirectory(prefix="edged-coverage-") as folder:
        recorded = rows.Recording(stream.x, stream.y.astype(np.float64))
        replay = Replay(config, shape_stream(recorded, config, how), how, Path(folder))
        made = replay.promises = Probabilities(replay.stream, stream.classes)
        replay.run()
    return made


def adaptive(made: Probabilities, y: NDArray[np.int64], coverage: float) -> NDArray[np.bool_]:
    """The sets of adaptive conformal inference, `(n, classes)`."""
    level = promised = 1.0 - coverage
    scores: list[float] = []
    sets = np.zeros_like(made.sets)
    known = int(made.blocks[0][0])
    for index in made.blocks:
        limit, newest = inf, sorted(scores[-SCORES:])
        if len(newest) >= FEWEST:
            rank = ceil((1.0 - level) * (len(newest) + 1))
            limit = -inf if rank < 1 else inf if rank > len(newest) else newest[rank - 1]
        sets[index] = 1.0 - made.output[index].astype(np.float64) <= limit
        while known <= index[-1] - DELAY:
            scores.append(1.0 - float(made.output[known, y[known]]))
            level += STEP * (promised - (not sets[known, y[known]]))
            known += 1
    return sets


def figures(sets: NDArray[np.bool_], y: NDArray[np.int64]) -> dict[str, float]:
    """How often sets `(n, classes)` contained the class, and how large they were."""
    covered = np.take_along_axis(sets, y[:, None], axis=1).astype(np.float64)
    shares = running_shares(covered)[:, 0]
    return {
        "covered": 100 * float(covered.mean()),
        "lowest": 100 * float(shares.min()),
        "highest": 100 * float(shares.max()),
        "lowest_apart": 100 * float(shares[::WINDOW].min()),
        "highest_apart": 100 * float(shares[::WINDOW].max()),
        "size": float(sets.sum(axis=1).mean()),
        "empty": 100 * float((sets.sum(axis=1) == 0).mean()),
    }


def measured(stream: Recording, seeds: int, coverage: float) -> list[dict[str, Any]]:
    """The rows of a stream: edged, and the yardstick."""
    found: dict[str, list[dict[str, float]]] = {"edged": [], "ACI": []}
    y = stream.y[stream.pretrain :]
    for seed in range(seeds):
        made = replayed(stream, seed, coverage)
        output = made.output[stream.pretrain :]
        right = output.argmax(axis=1) == y
        usual = {
            "accuracy": 100 * float(right.mean()),
            "calibration_error": calibration_error(output.max(axis=1).astype(np.float64), right),
        }
        for name, sets in (("edged", made.sets), ("ACI", adaptive(made, stream.y, coverage))):
            found[name].append(figures(sets[stream.pretrain :], y) | usual)
            print(stream.name, seed, name, found[name][-1], file=sys.stderr, flush=True)
    return [
        {"what": name, "stream": stream.name, "promised": coverage, "seeds": seeds, **summary(runs)}
        for name, runs in found.items()
    ]


def summary(runs: list[dict[str, float]]) -> dict[str, float]:
    """Means over the seeds; of extremes the extreme."""
    told = {}
    for key in runs[0]:
        values = [run[key] for run in runs]
        kind = min if key.startswith("lowest") else max if key.startswith("highest") else np.mean
        told[key] = round(float(kind(values)), 4)
    return told


def main() -> None:
    """Measure what is asked for."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, default=RECORDED, help="the directory of the recorded streams")
    parser.add_argument("--streams", default=",".join(STREAMS), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--coverage", type=float, default=0.9)
    args = parser.parse_args()
    rows = []
    for name in args.streams.split(","):
        rows += measured(read(name, args.data), args.seeds, args.coverage)
    head = "stream        what   covered  in each 2,000   apart          size  empty   ECE  accuracy"
    finish("coverage", rows, args, line, head)


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    each = f"{row['lowest']:.2f} to {row['highest']:.2f}"
    apart = f"{row['lowest_apart']:.2f} to {row['highest_apart']:.2f}"
    return (
        f"{row['stream']:13} {row['what']:6} {row['covered']:6.2f}  {each}  {apart}  {row['size']:.3f}"
        f"  {row['empty']:5.2f}  {row['calibration_error']:.4f}  {row['accuracy']:.2f}"
    )


if __name__ == "__main__":
    main()
