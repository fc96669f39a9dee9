"""Users that were learned first are still known after many others, and models that forgot are refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from edged.domain.events import CandidateRejected, Event
from edged.storage.recordings.rows import Recording
from edged.workbench.evaluation.replay import Replay
from edged.workbench.evaluation.stream import LabelOptions, shape_stream
from tests.constants import configured
from tests.streams import recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIRST = 6  # users of the pre-training
OPEN_GATE = {"min_gain": -1.0, "max_regret": 1.0, "min_holdout": 1, "probation": 0}
LONG_RUNS = {"new_labels": 200, "average": 0.0}


class Users(NamedTuple):
    """Rows of user after user, and held-out ones of the first."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    pretrain: int
    held: tuple[NDArray[np.float32], NDArray[np.int64]]


def walkers() -> dict[str, NDArray[Any]]:
    """Six activities of people who wear the sensor each in a way of their own."""
    rng = np.random.default_rng(3)
    centres = rng.normal(0, 1.0, (6, 72))
    x, y, user = [], [], []
    for person in range(20):
        of = rng.integers(0, 6, 200)
        turned = np.where(rng.random(72) < 0.4, -1.0, 1.0)
        x.append((centres[of] + rng.normal(0, 1.2, (200, 72))) * turned)
        y.append(of)
        user.append(np.full(200, person))
    return {"X": np.concatenate(x).astype(np.float32), "y": np.concatenate(y), "user": np.concatenate(user)}


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Users:
    """The basic activities of the recording, user after user; a third of the first users' rows held out."""
    path = recording("hapt_feat", tmp_path_factory.mktemp("users"), walkers)
    with np.load(path, allow_pickle=False) as data:
        basic = data["y"] < 6
        order = np.argsort(data["user"][basic], kind="stable")
        x, y, user = (data[name][basic][order] for name in ("X", "y", "user"))
    first = np.isin(user, np.unique(user)[:FIRST])
    held = first & (np.random.default_rng(0).random(len(y)) < 0.3)
    x, y = x.astype(np.float32), y.astype(np.int64)
    return Users(x[~held], y[~held], int((first & ~held).sum()), (x[held], y[held]))


def followed(
    users: Users, folder: Path, training: dict[str, Any], gate: dict[str, Any]
) -> tuple[float, list[Event]]:
    """Share of the held-out rows that the last champion gets right, and what happened."""
    config = configured(
        {
            "device": {"id": "users"},
            "stream": {"features": users.x.shape[1], "classes": 6, "context": []},
            "training": {**LONG_RUNS, **training},
            "gate": gate,
        }
    )
    options = LabelOptions(delay=150, pretrain=users.pretrain)
    stream = shape_stream(Recording(users.x, users.y.astype(np.float64)), config, options)
    replay = Replay(config, stream, options, folder)
    replay.run()
    right = replay.predictor.champion.model.predict(users.held[0]).argmax(axis=1) == users.held[1]
    return float(right.mean()), [event for _, event in replay.events]


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_without_replay_the_first_users_are_forgotten_and_the_gate_refuses_that(
    users: Users, tmp_path: Path
) -> None:
    remembering, _ = followed(users, tmp_path / "memory", {}, OPEN_GATE)
    forgetful, passed = followed(users, tmp_path / "none", {"replay": 0}, OPEN_GATE)
    _, judged = followed(users, tmp_path / "gate", {"replay": 0}, {"holdout": 0.1})
    assert remembering > 0.8
    assert forgetful < remembering - 0.04
    assert not [event for event in passed if event.to_json().get("forgets")]
    refused = [event.judged.verdict for event in judged if isinstance(event, CandidateRejected)]
    forgetting = [verdict for verdict in refused if verdict.forgets]
    assert forgetting
    assert "forgets" in forgetting[0].reasons[-1]
