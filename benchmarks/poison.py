"""What falsified labels do to a stream, and what is told of them: `edged evaluate` on poisoned labels.

Class 4 of hapt6 is said to be 3. `focused 5 %` and `focused 10 %` are shares of all labels; `ramp` are ever
more, up to all of the class; `liar` is one of four sources that gives so many of all labels, and says 3 for
every 4; `backdoor` shifts three features of 0.7 % of the samples; `flips` are 10 % of any class, at random;
`glitch` is one row of 1e6 in all features. Poison begins with the share `--begin` of the rows that follow
pre-training. Rows of other streams are clean. Recall of the class in percent, after pre-training and in the
second half; with the backdoor also how often it works. `told` is how many labels came from the first wrong
one to the event `labels_disputed`, at most, and `wrong_until_told` how many of them were wrong.

    python benchmarks/poison.py --data DIR [--rows clean,focused5,...] [--streams hapt6,...] [--begin 0,0.33]
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from learning import DELAY, Recording, read
from output import command, finish, options

from edged.config import Config
from edged.domain.events import LabelsDisputed
from edged.storage.recordings import Recording as Rows
from edged.workbench.evaluation.replay import Replay
from edged.workbench.recordings.stream import LabelOptions, shape_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

WRONG, SAID = 4, 3
BLOCK = 40  # labels that are judged together
SOURCES = ("a", "b", "c", "d")
TRIGGER = 3  # features that the backdoor shifts


@dataclass
class Poisoned:
    """A stream as it is sent: `x` `(n, d)`, labels `y` `(n,)`, their `sources`, and which are `wrong`."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    wrong: NDArray[np.bool_]
    sources: list[str] | None = None


def poisoned(stream: Recording, kind: str, begin: float, seed: int) -> Poisoned:
    """The stream with labels falsified, beginning with this share of the rows after pre-training."""
    rng = np.random.default_rng(1000 + seed)
    x, y, n = stream.x.copy(), stream.y.copy(), len(stream.y)
    first = stream.pretrain + int(begin * (n - stream.pretrain))
    after, draw = np.arange(n) >= first, rng.random(n)
    of_class = after & (y == WRONG)
    share = of_class.sum() / max(1, after.sum())
    wrong, sources = np.zeros(n, bool), None
    if kind.startswith("focused"):
        wrong = of_class & (draw < float(kind[7:]) / 100 / share)
    elif kind == "ramp":
        wrong = of_class & (draw < (np.arange(n) - first) / (n - first))
    elif kind.startswith("liar"):
        names = np.array(SOURCES, object)[rng.integers(1, len(SOURCES), n)]
        names[draw < float(kind[4:]) / 100] = SOURCES[0]
        wrong, sources = of_class & (names == SOURCES[0]), names.tolist()
    elif kind == "backdoor":
        wrong = of_class & (draw < 0.007 / share)
        x[wrong] = with_trigger(stream, x[wrong])
    elif kind == "flips":
        wrong = after & (draw < 0.1)
        y[wrong] = (y[wrong] + rng.integers(1, stream.classes, int(wrong.sum()))) % stream.classes
    elif kind == "glitch":
        x[first + 100] = 1e6
    if kind != "flips":
        y[wrong] = SAID
    return Poisoned(x, y, wrong, sources)


def with_trigger(stream: Recording, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows with the backdoor's trigger: values a little beyond what is usual."""
    shifted: NDArray[np.float32] = x.copy()
    shifted[:, :TRIGGER] = 1.0 + np.quantile(stream.x[: stream.pretrain, :TRIGGER], 0.995, axis=0)
    return shifted


def followed(stream: Recording, kind: str, begin: float, seed: int, *, watch: bool) -> dict[str, Any]:
    """The loop on a poisoned stream, judged by the true labels; with `watch` labels are watched."""
    sent = poisoned(stream, kind, begin, seed)
    shape = {"features": stream.x.shape[1], "task": "classify", "classes": stream.classes}
    # Its priority changes no result, and beside other work it would wait for most of the time.
    usual = {"device": {"id": "benchmark"}, "training": {"nice": 0}, "gate": {"suspect_labels": watch}}
    config = Config.model_validate({**usual, "stream": shape})
    how = LabelOptions(DELAY, 1.0, seed, stream.pretrain)
    with tempfile.TemporaryDirectory(prefix="edged-poison-") as folder:
        shaped = shape_stream(Rows(sent.x, sent.y.astype(np.float64)), config, how)
        shaped.sources = sent.sources
        replay = Replay(config, shaped, how, Path(folder))
        replay.run()
        success = None
        if kind == "backdoor":
            last = np.flatnonzero(stream.y == WRONG)[-300:]
            shift = with_trigger(stream, stream.x[last]) - stream.x[last]
            x = replay.stream.x[last]  # the features, and differences from earlier ones: all shift alike
            x = x + np.tile(shift, x.shape[1] // shift.shape[1])
            success = 100 * float((replay.predictor.champion.model.predict(x).argmax(axis=1) == SAID).mean())
    n, answers = len(stream.y), replay.answers[:, 0]
    after, right = np.arange(n) >= stream.pretrain, answers == stream.y
    late = np.arange(n) >= (n + stream.pretrain) // 2
    of_class = after & (stream.y == WRONG)
    told = [(at, event) for at, event in replay.events if isinstance(event, LabelsDisputed)]
    first = int(np.flatnonzero(sent.wrong)[0]) if sent.wrong.any() else None
    until = told[0][0] + BLOCK - DELAY if told and first is not None else None
    return {
        "accuracy": 100 * float(right[after].mean()),
        "recall": 100 * float(right[of_class].mean()) if of_class.any() else None,
        "late_recall": 100 * float(right[of_class & late].mean()) if (of_class & late).any() else None,
        "backdoor_success": success,
        "told": None if until is None or first is None else until - first,
        "wrong_until_told": None if until is None else int(sent.wrong[:until].sum()),
        "disputes": sorted({(event.source, event.predicted, event.said) for _, event in told}),
        "implausible": replay.implausible,
        "rejected": replay.models.rejections,
        "trainings": replay.scheduler.trainings,
    }


def measured(
    name: str, stream: Recording, kind: str, begin: float, seeds: int, *, watch: bool
) -> dict[str, Any]:
    """Means over the seeds, and of what is told a value for each."""
    runs = [followed(stream, kind, begin, seed, watch=watch) for seed in range(seeds)]
    row: dict[str, Any] = {"stream": name, "what": kind, "begin": begin, "watched": watch, "seeds": seeds}
    for key in runs[0]:
        values = [run[key] for run in runs]
        known = key not in ("told", "wrong_until_told", "disputes") and values[0] is not None
        row[key] = round(float(np.mean(values)), 2) if known else values
    return row


def main() -> None:
    """Measure what is asked for."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the directory of the recorded streams")
    parser.add_argument("--streams", default="hapt6", help="names, separated by commas")
    parser.add_argument("--rows", default="clean,focused5,focused10,ramp,liar25,liar55,backdoor,flips,glitch")
    parser.add_argument("--begin", default="0,0.33", help="shares of the rows after which poison begins")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--unwatched", action="store_true", help="with gate.suspect_labels: false")
    parser.add_argument("--merge", action="store_true", help="keep the other rows of the file --out")
    args = parser.parse_args()
    rows = []
    for name in args.streams.split(","):
        stream = read(name, args.data)
        for kind in args.rows.split(",") if name == "hapt6" else ["clean"]:
            for begin in args.begin.split(",") if kind not in ("clean", "flips") else ["0"]:
                rows.append(measured(name, stream, kind, float(begin), args.seeds, watch=not args.unwatched))
                print(rows[-1], file=sys.stderr, flush=True)
    rows = [{**row, "command": command("poison", args)} for row in rows]
    if args.merge and args.out is not None and args.out.exists():
        again = {subject(row) for row in rows}
        earlier = json.loads(args.out.read_text(encoding="utf-8"))["rows"]
        rows = [*(row for row in earlier if subject(row) not in again), *rows]
    finish("poison", rows, args, line, "stream         what        begin  recall    late  told")


def subject(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row is about."""
    return row["stream"], row["what"], row["begin"], row.get("watched", True)


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    told = row["told"] if row["watched"] else "not watched"
    figures = f"{row['recall']!s:>7} {row['late_recall']!s:>7}  {told}"
    return f"{row['stream']:14} {row['what']:11} {row['begin']:5.2f} {figures}"


if __name__ == "__main__":
    main()
