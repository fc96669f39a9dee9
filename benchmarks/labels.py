"""What wrong labels cost: recorded streams through the whole loop, with some of their labels falsified.

    python benchmarks/labels.py --data DIR [--stream elec2] [--rows N] [--json]

`flipped`: a tenth of all labels names another class, from the first row on. `random`: in the second half
every other label is drawn at random from the classes. Answers are scored against the true labels. The demand:
`flipped` costs at most 5 points of accuracy, and under `random` candidates are refused and training pauses.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from output import finish, options, pairs

from edged import logs
from edged.config import loader
from edged.domain.events import TrainingPaused
from edged.storage.recordings import Recording, read_stream
from edged.workbench.evaluation.replay import Replay
from edged.workbench.evaluation.score import report
from edged.workbench.recordings.stream import LabelOptions, shape_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from output import Row

STREAMS = {"elec2": (8, 2), "hapt_feat": (72, 12), "noaa_weather": (8, 2)}
CASES = ("clean", "flipped", "random")
FLIPPED = 0.1
RANDOM = 0.5


def falsified(
    y: NDArray[np.float64], classes: int, case: str, rng: np.random.Generator
) -> NDArray[np.float64]:
    """The labels `(n,)` as they arrive."""
    n = len(y)
    if case == "flipped":
        wrong = (y + rng.integers(1, classes, n)) % classes
        return np.where(rng.random(n) < FLIPPED, wrong, y)
    if case == "random":
        chosen = (np.arange(n) >= n // 2) & (rng.random(n) < RANDOM)
        return np.where(chosen, rng.integers(0, classes, n), y)
    return y


def replayed(recorded: Recording, classes: int, case: str, seed: int) -> Row:
    """One stream with one kind of wrong labels through the loop."""
    truth = np.asarray(recorded.y, np.float64).reshape(-1)
    width = recorded.x.shape[1]
    arriving = falsified(truth, classes, case, np.random.default_rng(seed))
    with tempfile.TemporaryDirectory(prefix="edged-labels-") as folder:
        path = Path(folder) / "edged.yaml"
        path.write_text(
            f"device: {{id: labels}}\nstream: {{features: {width}, classes: {classes}}}\n", encoding="utf-8"
        )
        config, chosen = loader.load(path, {}), LabelOptions(seed=seed)
        stream = shape_stream(Recording(recorded.x, arriving), config, chosen)
        replay = Replay(config, stream, chosen, Path(folder) / "state")
        replay.run()
        figures: Mapping[str, Any] = report(replay).to_json()
    scored = slice(replay.pretrain, None)
    right = replay.answers[scored, 0] == truth[scored]
    half = len(truth) // 2 - replay.pretrain
    paused = [at for at, event in replay.events if isinstance(event, TrainingPaused)]
    return {
        "labels": case,
        "seed": seed,
        "accuracy": round(float(right.mean()), 4),
        "second_half": round(float(right[half:].mean()), 4),
        "trainings": figures["trainings"],
        "promotions": figures["promotions"],
        "rejections": figures["rejections"],
        "pauses": len(paused),
        "first_pause": paused[0] if paused else None,
        "seconds": round(figures["train_seconds"], 1),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory with the recorded streams")
    parser.add_argument(
        "--stream", action="append", choices=sorted(STREAMS), help="only this one; repeatable"
    )
    parser.add_argument("--case", action="append", choices=CASES, help="only this kind of labels; repeatable")
    parser.add_argument("--rows", type=int, help="only the first rows of each stream")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds")
    args = parser.parse_args()
    logs.configure("error", "auto")
    rows: list[Row] = []
    for name in args.stream or ("elec2", "hapt_feat"):
        whole = read_stream(args.data / f"{name}.npz")
        part = Recording(whole.x[: args.rows], np.asarray(whole.y)[: args.rows])
        for seed in range(args.seeds):
            rows += [
                {"stream": name, **replayed(part, STREAMS[name][1], case, seed)}
                for case in args.case or CASES
            ]
    finish("labels", rows, args, pairs)


if __name__ == "__main__":
    main()
