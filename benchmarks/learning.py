"""How well streams are followed: edged beside rivals, prequentially, labels coming late.

Rows of edged are `edged evaluate` with its defaults and no word about the stream but its shape. The rivals
are simple loops on the same engine with the same network, delay and chunks, and learners of `river` where
that is installed. Accuracy in percent after the pre-training part, mean of the seeds. With `--merge` rows of
an earlier result stay, unless they are measured again; each row tells the command that made it. With
`--first-minutes` only the first 20 (occupancy) or 60 rows are pre-training, and the 1,500 after them count.
With `--order shuffled` the rows come in a random order, where a context says nothing; with `--order
interleaved` the two halves of a stream come row by row in turn, each with a key of its own, and with `--order
apart` one half after the other, each to a device of its own.

    python benchmarks/learning.py [--data DIR] [--streams elec2,hapt6] [--seeds 3] [--rivals edged,frozen,...]
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from output import command, finish, options

from edged.config import Config
from edged.domain.stream.running_statistics import RunningMoments
from edged.domain.stream.temporal_context import TemporalContext
from edged.domain.training.batch_pool import Reservoir

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Ids = NDArray[np.int64]

CHUNK, DELAY, MEMORY, BATCH, HALF_LIFE = 100, 150, 5000, 64, 1000.0
MINUTES = 1500  # rows


@dataclass(frozen=True)
class Recording:
    """A stream: `x` `(n, d)`, class indices `y` `(n,)`, rows of pre-training, and rows held out of it.

    `user` `(n,)` says whose a row is, where a stream has users. `among` are the rows held out with those
    around them, in their order, and which of them are held out: a row has the context of where it lay. `keys`
    `(n,)` say which sensor a row is of.
    """

    name: str
    x: Floats
    y: Ids
    pretrain: int
    held: tuple[Floats, Ids] | None = None
    user: Ids | None = None
    among: tuple[Floats, NDArray[np.bool_]] | None = None
    keys: list[str] | None = None

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return int(self.y.max()) + 1


def generated(name: str) -> Recording:
    """A stream of 6,000 rows in 8 features and 2 classes, whose boundary turns by half a circle."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6000, 8)).astype(np.float32)
    angle = np.linspace(0, np.pi, len(x))
    y = (np.cos(angle) * x[:, 0] + np.sin(angle) * x[:, 1] > 0).astype(np.int64)
    return Recording(f"{name} (generated)", x, y, 600)


def read(name: str, folder: Path) -> Recording:
    """A recorded stream by name; a generated one if `folder` has none.

    `hapt6` is made of `hapt_feat`: the basic activities, user after user.
    """
    path = folder / f"{'hapt_feat' if name == 'hapt6' else name}.npz"
    if not path.exists():
        return generated(name)
    with np.load(path, allow_pickle=False) as data:
        x, y = data["X"].astype(np.float32), data["y"].astype(np.int64)
        if name != "hapt6":
            return Recording(name, x, y, max(20, len(x) // 10))
        user = data["user"]
    basic = y < 6
    order = np.argsort(user[basic], kind="stable")
    x, y, user = x[basic][order], y[basic][order], user[basic][order]
    first = np.isin(user, np.unique(user)[:6])
    held = first & (np.random.default_rng(0).random(len(x)) < 0.3)
    learned, among = int((first & ~held).sum()), (x[first], held[first])
    return Recording(name, x[~held], y[~held], learned, (x[held], y[held]), user[~held], among)


def first_minutes(stream: Recording) -> Recording:
    """The beginning of a stream: few labels, and the rows that come after them."""
    known = 20 if stream.name == "occupancy" else 60
    x, y = stream.x[: known + MINUTES], stream.y[: known + MINUTES]
    return Recording(f"{stream.name}, first minutes", x, y, known)


def ordered(stream: Recording, order: str) -> list[Recording]:
    """The streams that the rows of one make in another order; held-out rows and users are left out."""
    n = len(stream.x) // 2
    halves, plain = (np.arange(n), np.arange(n, 2 * n)), f"{stream.name}, {order}"
    if order == "shuffled":
        rows = np.random.default_rng(0).permutation(len(stream.x))
        return [Recording(plain, stream.x[rows], stream.y[rows], stream.pretrain)]
    if order == "apart":
        return [
            Recording(f"{plain} {i + 1}", stream.x[rows], stream.y[rows], stream.pretrain // 2)
            for i, rows in enumerate(halves)
        ]
    rows = np.stack(halves, axis=1).ravel()
    return [Recording(plain, stream.x[rows], stream.y[rows], stream.pretrain, keys=["a", "b"] * n)]


# ---- edged ------------------------------------------------------------------------------------


def edged(
    stream: Recording, seed: int, rate: float, *, ask: bool = False, network: str | None = None
) -> dict[str, Any]:
    """`edged evaluate` with defaults; with `ask` it chooses the share `rate` of labels that it gets.

    `network` is `model.network` and has neither context nor head beside it.
    """
    from edged.storage.recordings.rows import Recording
    from edged.workbench.evaluation.replay import Replay
    from edged.workbench.evaluation.score import report
    from edged.workbench.evaluation.stream import LabelOptions, shape_stream

    shape = {"features": stream.x.shape[1], "task": "classify", "classes": stream.classes}
    # Its priority changes no result, and beside other work it would wait for most of the time.
    usual = {"device": {"id": "benchmark"}}
    if network is not None:
        usual, shape = {**usual, "model": {"network": network, "head": "none"}}, {**shape, "context": []}
    config = Config.model_validate({**usual, "stream": shape})
    how = LabelOptions(DELAY, rate, seed, stream.pretrain, ask=ask)
    with tempfile.TemporaryDirectory(prefix="edged-learning-") as folder:
        shaped = shape_stream(Recording(stream.x, stream.y.astype(np.float64), key=stream.keys), config, how)
        replay = Replay(config, shaped, how, Path(folder))
        replay.run()
        figures: Mapping[str, Any] = report(replay).to_json()
        kept = {}
        if stream.held is not None and stream.among is not None:
            context, (x, chosen) = TemporalContext.of(replay.schema), stream.among
            x = (x if context is None else context.extend(["stream"] * len(x), x))[chosen]
            for name, served in (("held_out", replay.predictor.champion), ("held_out_frozen", replay.frozen)):
                right = served.model.predict(x).argmax(axis=1) == stream.held[1]
                kept[name] = round(100 * float(right.mean()), 2)
    return {
        "accuracy": 100 * figures["metric"]["accuracy"],
        "balanced": 100 * figures["metric"]["balanced_accuracy"],
        "frozen": 100 * figures["frozen"]["accuracy"],
        **{name: 100 * found["accuracy"] for name, found in figures["experts"].items()},
        "last_label": 100 * figures["no_change"]["accuracy"],
        "trainings": figures["trainings"],
        "promotions": figures["promotions"],
        **by_user(stream, replay.answers[:, 0]),
        **kept,
    }


# ---- simple loops -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Loop:
    """A plain learner: what it remembers, how much of a batch is new, and whether inputs are followed."""

    steps: int
    memory: str = "none"
    new_share: float = 1.0
    restandardise: bool = False


class Learner:
    """The network of LEARNING on the portable engine, in this process, without gate and log."""

    def __init__(self, stream: Recording, loop: Loop, seed: int, folder: Path) -> None:
        from edged.bundles.build import build
        from edged.bundles.graph.templates import mlp
        from edged.bundles.losses.named import CrossEntropy
        from edged.bundles.request import BuildRequest
        from edged.bundles.source.standardise import Statistics
        from edged.domain.protocols import LearningRate
        from edged.engines import open_engine

        self.moments = RunningMoments(HALF_LIFE)
        self.moments.update(stream.x[: stream.pretrain])
        request = BuildRequest(
            model=mlp(stream.x.shape[1], stream.classes, (64, 32), output="logits", seed=seed),
            loss=CrossEntropy(),
            standardise=Statistics(*self.moments.scale()),
        )
        bundle = build(request, folder / "bundle")
        names = bundle.standardise
        if names is None:
            raise ValueError("the bundle has no statistics")
        self._names, self._loop, self._stream, self._path = names, loop, stream, folder / "model.onnx"
        self._engine = open_engine("portable", bundle)
        self._engine.begin(LearningRate(1e-3))
        self._rng = np.random.default_rng(seed)
        self._memory, self._window = Reservoir(MEMORY), np.empty(0, np.int64)
        head = np.arange(stream.pretrain)
        self.learn(head, max(50, stream.pretrain // 2))

    def learn(self, new: Ids, steps: int) -> None:
        """Steps on new rows, mixed with remembered ones, which then are remembered themselves."""
        if self._loop.restandardise:
            self.moments.update(self._stream.x[new])
            mean, scale = self.moments.scale()
            self._engine.set_parameters({self._names["mean"]: mean, self._names["scale"]: scale})
        self._window = np.concatenate([self._window, new])[-MEMORY:]
        source = self._window if self._loop.memory == "window" else new
        old = self._memory.ids if self._loop.memory == "reservoir" else source[:0]
        fresh = max(1, round(BATCH * self._loop.new_share)) if len(old) else BATCH
        for _ in range(steps):
            rows = np.concatenate([self._rng.choice(source, fresh), self._rng.choice(old, BATCH - fresh)]
                                  if len(old) else [self._rng.choice(source, BATCH)])  # fmt: skip
            self._engine.step(self._stream.x[rows], self._stream.y[rows])
        self._memory.add(new, self._rng)

    def answers(self, x: Floats) -> Ids:
        """Classes `(n,)`, by the exported model."""
        from edged.engines.inference import InferenceModel

        self._engine.export(self._path)
        return np.asarray(InferenceModel(self._path).predict(x).argmax(axis=1))


def looped(loop: Loop) -> Callable[[Recording, int, float], dict[str, Any]]:
    """The rival that a plain loop is."""

    def follow(stream: Recording, seed: int, rate: float) -> dict[str, Any]:
        arrives = np.random.default_rng(seed).random(len(stream.x)) < rate
        with tempfile.TemporaryDirectory(prefix="edged-learning-") as folder:
            learner = Learner(stream, loop, seed, Path(folder))
            answers, waiting = np.zeros(len(stream.y), np.int64), []
            for start in range(stream.pretrain, len(stream.y), CHUNK):
                end = min(start + CHUNK, len(stream.y))
                answers[start:end] = learner.answers(stream.x[start:end])
                known = np.arange(max(stream.pretrain, start - DELAY), max(stream.pretrain, end - DELAY))
                waiting += known[arrives[known]].tolist()
                if len(waiting) >= CHUNK * rate:
                    learner.learn(np.asarray(waiting), loop.steps)
                    waiting = []
            kept = {}
            if stream.held is not None:
                right = learner.answers(stream.held[0]) == stream.held[1]
                kept = {"held_out": round(100 * float(right.mean()), 2)}
        return {"accuracy": accuracy(stream, answers), **by_user(stream, answers), **kept}

    return follow


def accuracy(stream: Recording, answers: Ids) -> float:
    """Percent right after the pre-training part."""
    return 100 * float((answers == stream.y)[stream.pretrain :].mean())


def by_user(stream: Recording, answers: NDArray[Any]) -> dict[str, float]:
    """Percent right of the users after the pre-training part: their mean, and the worst of them."""
    if stream.user is None:
        return {}
    right, user = (answers == stream.y)[stream.pretrain :], stream.user[stream.pretrain :]
    each = [100 * float(right[user == one].mean()) for one in np.unique(user)]
    return {"user_mean": round(float(np.mean(each)), 2), "user_worst": round(min(each), 2)}


# ---- river ------------------------------------------------------------------------------------


def river_model(kind: str, seed: int) -> Any:
    """A learner of river, with its defaults but those that the row's name tells."""
    from river import drift, forest, linear_model, multiclass, preprocessing, tree

    if kind == "logistic regression":
        return preprocessing.StandardScaler() | multiclass.OneVsRestClassifier(
            linear_model.LogisticRegression()
        )
    if kind == "Hoeffding adaptive tree":
        return tree.HoeffdingAdaptiveTreeClassifier(seed=seed)
    quiet = {"drift_detector": drift.NoDrift(), "warning_detector": drift.NoDrift()}
    return forest.ARFClassifier(n_models=10, seed=seed, **(quiet if "without" in kind else {}))


def rivering(kind: str) -> Callable[[Recording, int, float], dict[str, Any]]:
    """The rival that a learner of river is: one sample after the other, labels late by DELAY."""

    def follow(stream: Recording, seed: int, rate: float) -> dict[str, Any]:
        model = river_model(kind, seed)
        arrives = np.random.default_rng(seed).random(len(stream.x)) < rate
        rows = [dict(enumerate(row)) for row in stream.x.tolist()]
        answers = np.zeros(len(rows), np.int64)
        for i in range(len(rows)):
            late = i if i < stream.pretrain else i - DELAY
            if i >= stream.pretrain:
                answers[i] = model.predict_one(rows[i]) or 0
            if late == i or (late >= stream.pretrain and arrives[late]):
                model.learn_one(rows[late], int(stream.y[late]))
        return {"accuracy": accuracy(stream, answers), **by_user(stream, answers)}

    return follow


RIVALS: dict[str, Callable[[Recording, int, float], dict[str, Any]]] = {
    "edged": edged,
    "edged with label requests": partial(edged, ask=True),
    "edged with one network": partial(edged, network="mlp"),
    "frozen + running re-standardisation": looped(Loop(0, restandardise=True)),
    "new rows only, 20 steps": looped(Loop(20)),
    "reservoir, half new, 20 steps": looped(Loop(20, "reservoir", 0.5)),
    "reservoir, 25 % new, 50 steps, re-standardised": looped(Loop(50, "reservoir", 0.25, True)),
    "sliding window, warm start, 50 steps": looped(Loop(50, "window")),
    "logistic regression": rivering("logistic regression"),
    "Hoeffding adaptive tree": rivering("Hoeffding adaptive tree"),
    "adaptive random forest (10)": rivering("adaptive random forest"),
    "adaptive random forest (10) without drift resets": rivering("without"),
}
OF_RIVER = [name for name in RIVALS if "logistic" in name or "tree" in name or "forest" in name]
RECORDED = Path(os.environ.get("EDGED_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""The folder of the recorded streams."""

STREAMS = ["elec2", "noaa_weather", "hapt6", "sea", "occupancy"]


def measured(name: str, stream: Recording, seeds: int, rate: float) -> dict[str, Any]:
    """Means over the seeds, and the processor time of one."""
    began, cpu = time.monotonic(), processor_seconds()
    runs = [RIVALS[name](stream, seed, rate) for seed in range(seeds)]
    means = {key: round(float(np.mean([run[key] for run in runs])), 2) for key in runs[0]}
    return {
        "what": name,
        "stream": stream.name,
        "label_rate": rate,
        "seeds": seeds,
        **means,
        "spread": round(float(np.std([run["accuracy"] for run in runs])), 2),
        "cpu_s": round((processor_seconds() - cpu) / seeds, 1),
        "seconds": round((time.monotonic() - began) / seeds, 1),
    }


def processor_seconds() -> float:
    """User and system time of this process and its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    """Measure what is asked for."""
    import structlog

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, default=RECORDED, help="the directory of the recorded streams")
    parser.add_argument("--streams", default=",".join(STREAMS), help="names, separated by commas")
    parser.add_argument("--rivals", help="names, separated by commas; all that are installed when absent")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--label-rate", type=float, default=1.0)
    parser.add_argument("--first-minutes", action="store_true", help="the beginnings of the streams alone")
    parser.add_argument("--order", choices=("shuffled", "interleaved", "apart"), help="of the rows")
    parser.add_argument("--merge", action="store_true", help="keep the other rows of the file --out")
    args = parser.parse_args()
    installed = [name for name in RIVALS if name not in OF_RIVER or find_spec("river") is not None]
    names = named(args.rivals) if args.rivals else installed
    rows = []
    streams = [read(name, args.data) for name in args.streams.split(",")]
    if args.order:
        streams = [made for stream in streams for made in ordered(stream, args.order)]
    for stream in map(first_minutes, streams) if args.first_minutes else streams:
        for name in names:
            rows.append(measured(name, stream, args.seeds, args.label_rate))
            print(rows[-1], file=sys.stderr, flush=True)
    rows = [{**row, "command": command("learning", args)} for row in rows]
    if args.merge and args.out is not None and args.out.exists():
        rows = merged(json.loads(args.out.read_text(encoding="utf-8")), rows)
    finish("learning", rows, args, line, "stream                     accuracy  what")


def named(text: str) -> list[str]:
    """The rivals in a list of names, which have commas between and within them."""
    names = []
    while text:
        known = [name for name in RIVALS if f"{text},".startswith(f"{name},")]
        if not known:
            raise SystemExit(f"there is no rival {text!r}: {'; '.join(RIVALS)}")
        names += known
        text = text[len(known[0]) + 1 :]
    return names


def merged(earlier: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an earlier result, those that were measured again replaced, and then the others."""
    again = {subject(row): row for row in rows}
    kept = [again.pop(subject(row), {"command": earlier["command"], **row}) for row in earlier["rows"]]
    return [*kept, *again.values()]


def subject(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row is about."""
    return row["what"], row["stream"], row["label_rate"]


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    return f"{row['stream']:26} {row['accuracy']:7.2f}  {row['what']}"


if __name__ == "__main__":
    main()
