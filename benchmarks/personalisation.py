"""What a device makes of a model for everybody once it knows its one user: `hapt_feat`, six activities.

    python benchmarks/personalisation.py --data DIR [--fold 0] [--json]

Thirty people, in three folds of ten. `edged recipe run` trains the standard network on the users of the two
other folds and writes a bundle for the device, of which it may train the last layer or all of it. Each of the
ten then is a stream of its own through the whole loop, from the bundle's model on (`--pretrain 0`): a session
on one day, whose labels arrive, a run in the night after it, and a second session on the next day.

`before` and `after` are the accuracy on the second session of the bundle's model, and of the one that serves
after that night: none of these rows has been learned from. `prequential` is that of both sessions, each row
answered by the model of its moment, beside `frozen`. With `when` 40 runs of 40 labels come in the midst of
a session instead.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import yaml
from output import finish, options, pairs

from edged import logs
from edged.cli.progress import RecipeProgress
from edged.config import loader
from edged.storage.recordings import Recording
from edged.workbench.evaluation.replay import Replay
from edged.workbench.evaluation.score import report
from edged.workbench.experiments import ExperimentOptions, run
from edged.workbench.recordings.stream import LabelOptions, shape_stream

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from output import Row

    from edged.config import Config

FOLDS, DAY = 3, 86_400.0
TRAINED = {"last": ["last:1"], "all": None}
WHEN: dict[str, dict[str, Any]] = {
    "night": {
        "training": {"cron": "0 3 * * *", "new_labels": 0},
        "gate": {"holdout": 0.1, "min_holdout": 10},
    },
    "40": {"training": {"every": None}, "gate": {"holdout": 0.1, "min_holdout": 5}},
}


class People(NamedTuple):
    """Rows of basic activities in the order of time, whose they are, and in which session."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    user: NDArray[np.int64]
    second: NDArray[np.bool_]


def read(path: Path) -> People:
    """The recording; the second session of a person are all experiments but the first."""
    with np.load(path, allow_pickle=False) as data:
        basic = data["y"] < 6
        order = np.argsort(data["user"][basic], kind="stable")
        x, y, user, session = (data[name][basic][order] for name in ("X", "y", "user", "exp"))
    first = {int(who): session[user == who].min() for who in np.unique(user)}
    return People(x, y.astype(np.int64), user, session != np.array([first[int(who)] for who in user]))


def pretrained(people: People, known: NDArray[np.bool_], trained: str, folder: Path) -> Path:
    """The configuration of a device whose bundle has learned from the users `known`."""
    stream = {"features": people.x.shape[1], "classes": int(people.y.max()) + 1}
    file = {
        "name": trained,
        "stream": stream,
        "split": {"train": 0.8, "validation": 0.2, "test": 0},
        "recipes": [{"epochs": 30, "patience": 5}],
        "deploy": {"train": TRAINED[trained]},
    }
    np.savez(folder / "known.npz", X=people.x[known], y=people.y[known])
    (folder / "recipe.yaml").write_text(yaml.safe_dump(file), encoding="utf-8")
    config = folder / f"{trained}.yaml"
    wanted = ExperimentOptions(folder / trained, 1, config)
    with RecipeProgress() as progress:
        run(folder / "recipe.yaml", folder / "known.npz", wanted, progress)
    return config


def configured(base: Path, when: str) -> Config:
    """The configuration with the time of its runs, and a gate for the few samples of one person."""
    sections = yaml.safe_load(base.read_text(encoding="utf-8"))
    for name, values in WHEN[when].items():
        sections[name] = sections.get(name, {}) | values
    path = base.with_name(f"{base.stem}-{when}.yaml")
    path.write_text(yaml.safe_dump(sections), encoding="utf-8")
    return loader.load(path, {})


def lived(people: People, who: int, config: Config, seed: int) -> Row:
    """One person's two days with a device."""
    rows = np.flatnonzero(people.user == who)
    second = people.second[rows]
    seconds = np.arange(len(rows)) + 1.7e9 // DAY * DAY + DAY * second
    chosen = LabelOptions(delay=0, seed=seed, pretrain=0)
    stream = shape_stream(
        Recording(people.x[rows], people.y[rows].astype(np.float64), seconds), config, chosen
    )
    morning: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="edged-personal-") as folder:
        replay = Replay(config, stream, chosen, Path(folder), lambda at, *_: note(at))

        def note(position: int) -> None:
            if position > int((~second).sum()) and not morning:
                morning.append(replay.predictor.champion)

        replay.run()
        figures: Mapping[str, Any] = report(replay).to_json()
    x, y = people.x[rows][second], people.y[rows][second]
    before, after = (
        float((served.model.predict(x).argmax(axis=1) == y).mean()) for served in (replay.frozen, morning[0])
    )
    counts = {name: figures[name] for name in ("trainings", "promotions", "rejections", "rollbacks")}
    told = {"before": before, "after": after, "frozen": figures["frozen"]["accuracy"],
            "prequential": figures["metric"]["accuracy"]}  # fmt: skip
    return {
        "user": int(who),
        "labels": int((~second).sum()),
        **{k: round(v, 4) for k, v in told.items()},
        **counts,
    }


def summary(rows: list[Row], trained: str, when: str) -> Row:
    """All users of one way to adapt."""
    before, after, frozen, live = (
        np.array([row[name] for row in rows]) for name in ("before", "after", "frozen", "prequential")
    )
    figures = {
        "before": before.mean(), "after": after.mean(),
        "worst_before": before.min(), "worst_after": after.min(),
        "frozen": frozen.mean(), "prequential": live.mean(),
    }  # fmt: skip
    return {
        "trained": trained, "when": when, "users": len(rows),
        **{name: round(float(value), 4) for name, value in figures.items()},
        "better": int((after > before).sum()), "worse": int((after < before).sum()),
    }  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory with the recorded streams")
    parser.add_argument(
        "--fold", action="append", type=int, choices=range(FOLDS), help="only this; repeatable"
    )
    parser.add_argument("--trained", action="append", choices=TRAINED, help="only this part; repeatable")
    parser.add_argument("--when", action="append", choices=WHEN, help="only then; repeatable")
    parser.add_argument("--seed", type=int, default=0, help="of the folds and of training on the device")
    args = parser.parse_args()
    logs.configure("error", "auto")
    people = read(args.data / "hapt_feat.npz")
    users = np.random.default_rng(args.seed).permutation(np.unique(people.user))
    single: list[Row] = []
    for fold in args.fold or range(FOLDS):
        unseen = np.sort(users[fold::FOLDS])
        for trained in args.trained or TRAINED:
            with tempfile.TemporaryDirectory(prefix="edged-personal-") as folder:
                base = pretrained(people, ~np.isin(people.user, unseen), trained, Path(folder))
                for when in args.when or WHEN:
                    config = configured(base, when)
                    single += [
                        {
                            "trained": trained,
                            "when": when,
                            "fold": fold,
                            **lived(people, who, config, args.seed),
                        }
                        for who in unseen
                    ]
    ways = sorted({(row["trained"], row["when"]) for row in single}, reverse=True)
    together = [
        summary([row for row in single if (row["trained"], row["when"]) == way], *way) for way in ways
    ]
    finish("personalisation", [*together, *single], args, pairs)


if __name__ == "__main__":
    main()
