"""docs/personalisation.md: learned from some people off the device, fine-tuned on another one on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from edged.config import loader
from edged.engines.onnx.fields import parameters_in
from edged.storage.models.bundles import Bundle
from edged.storage.models.registry import Registry
from edged.storage.recordings.rows import Recording
from edged.workbench.evaluation.replay import Replay
from edged.workbench.evaluation.stream import LabelOptions, shape_stream
from tests.commands import edged, write_config
from tests.streams import recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

UNSEEN = (5, 14)
"""Whom nobody has learned from."""
DAY = 86_400.0


class People(NamedTuple):
    """Rows of six activities, person after person; `second` marks those of the second day."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    user: NDArray[np.int64]
    second: NDArray[np.bool_]


def walkers() -> dict[str, NDArray[Any]]:
    """Thirty people who wear the sensor each a little differently, in two sessions of six activities."""
    rng = np.random.default_rng(3)
    centres = rng.normal(0, 0.25, (6, 72))
    x, y, user, exp = list[Any](), list[Any](), list[Any](), list[Any]()
    for person in range(1, 31):
        of = np.tile(np.repeat(np.arange(6), 25), 2)
        own = centres + rng.normal(0, 0.6, (6, 72))
        x.append(own[of] + rng.normal(0, 0.7, (300, 72)))
        y.append(of)
        user.append(np.full(300, person))
        exp.append(np.repeat([2 * person, 2 * person + 1], 150))
    parts = {"X": x, "y": y, "user": user, "exp": exp}
    return {name: np.concatenate(values) for name, values in parts.items()}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    path = recording("hapt_feat", tmp_path_factory.mktemp("people"), walkers)
    with np.load(path, allow_pickle=False) as data:
        basic = data["y"] < 6
        x, y, user, exp = (data[name][basic] for name in ("X", "y", "user", "exp"))
    first = {int(who): exp[user == who].min() for who in np.unique(user)}
    second = exp != np.array([first[int(who)] for who in user])
    return People(x.astype(np.float32), y.astype(np.int64), user, second)


@pytest.fixture(scope="module")
def device(people: People, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a device whose bundle was pre-trained as the page says."""
    folder = tmp_path_factory.mktemp("device")
    known = ~np.isin(people.user, UNSEEN)
    np.savez(folder / "known.npz", X=people.x[known], y=people.y[known])
    section = {"features": people.x.shape[1], "classes": 6}
    config = write_config(
        folder, section, model={"network": "mlp"}, training={"every": None, "new_labels": 0}
    )
    rows = int(0.8 * known.sum())
    trained = edged(
        "evaluate", config, "--data", folder / "known.npz", "--pretrain", rows, "-o", folder / "trained"
    )
    assert trained.code == 0, trained.err
    built = edged(
        "artifacts", "build", folder / "trained" / "models" / "2" / "model.onnx",
        "-o", folder / "device.bundle", "--loss", "cross_entropy", "--train", "last:1", "--config", config,
    )  # fmt: skip
    assert built.code == 0, built.err
    return write_config(
        folder, section, model={"bundle": "./device.bundle"},
        training={"every": "0 3 * * *", "new_labels": 0}, gate={"holdout": 0.1},
    )  # fmt: skip


def two_days(people: People, who: int, path: Path, folder: Path) -> tuple[float, float]:
    """Accuracy on the second day of the bundle's model, and of the device's answers."""
    config, options = loader.load(path, {}), LabelOptions(delay=0, pretrain=0)
    rows = np.flatnonzero(people.user == who)
    second = people.second[rows]
    times = 1.7e9 // DAY * DAY + np.arange(len(rows)) + DAY * second
    recorded = Recording(people.x[rows], people.y[rows].astype(np.float64), times)
    replay = Replay(config, shape_stream(recorded, config, options), options, folder)
    replay.run()
    assert replay.models.promotions == 1
    wrong = replay.answers[:, 0] != people.y[rows]
    before = replay.frozen_answers[:, 0] != people.y[rows]
    assert (wrong == before)[~second].all(), "nothing is learned before the night"
    return 1 - float(before[second].mean()), 1 - float(wrong[second].mean())


@pytest.mark.slow
def test_a_night_on_one_persons_labels_makes_the_next_day_better(
    people: People, device: Path, tmp_path: Path
) -> None:
    figures = np.array([two_days(people, who, device, tmp_path / str(who)) for who in UNSEEN])
    before, after = figures.mean(axis=0)
    assert before > 0.6
    assert after > before + 0.04, figures
    assert (figures[:, 1] >= figures[:, 0] - 0.02).all(), figures
    check_what_has_changed(device, tmp_path / str(UNSEEN[0]))


def check_what_has_changed(device: Path, state: Path) -> None:
    """The last layer and the running statistics of the inputs, and nothing else."""
    bundle = Bundle.open(device.with_name("device.bundle"))
    with Registry.open(state, readonly=True) as registry:
        champion = registry.champion()
        assert champion is not None
        now = registry.verify(champion)
        before, after = (
            parameters_in(path, [*bundle.trainable, *bundle.frozen]) for path in (bundle.inference_model, now)
        )
    changed = {name for name, value in before.items() if not np.array_equal(after[name], value)}
    assert bundle.trainable == ("layer2.weight", "layer2.bias")
    assert changed - {"input.mean", "input.scale"} == set(bundle.trainable)
