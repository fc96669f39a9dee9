"""A fresh start beside the learner, after the world has turned into its opposite."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from edged.domain.judging.challenger_test import ROWS
from edged.domain.training.trainer_messages import ChallengerState, LogLine
from edged.engines.inference import InferenceModel
from edged.engines.portable.engine import PortableEngine
from edged.trainer.challenger import MARK_FILE
from edged.trainer.steps import InterruptedRunError
from tests.device.learning_rig import Workshop, after, model_bytes, task, weights
from tests.installed import KINDS, UsualEngine

if TYPE_CHECKING:
    from edged.domain.protocols import Engine
    from edged.domain.training.training_run import Challenge, RunResult
    from edged.storage.models.bundles import Bundle
    from edged.trainer.run import TrainingRun


class World:
    """Runs of 80 new labels each: three on a rule, then on its opposite."""

    def __init__(self, folder: Path, bundle: Bundle, kind: Any = UsualEngine, **training: Any) -> None:
        chosen: dict[str, Any] = {"average": 0.0, "challenger": "auto"}
        self.shop = Workshop(folder, bundle, **chosen | training)
        self.kind, self._seed = kind, 0
        self.engine: Engine = kind(bundle)
        self.stop = False

    def trainee(self, **options: Any) -> TrainingRun:
        self.engine = self.kind(self.shop.bundle)
        return self.shop.trainee(self.engine, **options)

    def feed(self, *, turned: bool) -> None:
        self._seed += 1
        x, labels = task(90, self._seed)
        self.shop.feed(x, [2.0 - float(str(label)) for label in labels] if turned else labels)

    def run(self, trainee: TrainingRun, *, turned: bool = True, challenge: bool = False) -> RunResult:
        self.feed(turned=turned)
        result = trainee.run(self.shop.request(challenge=challenge))
        if self.shop.champion is None or not turned:
            self.shop.champion = result.candidate
        return result

    def until_won(self, trainee: TrainingRun | None = None) -> RunResult:
        """The run that hands in a challenger; each run in a trainee of its own without one."""
        for _ in range(3):
            self.run(trainee or self.trainee(), turned=False)
        for run in range(8):
            result = self.run(trainee or self.trainee(), challenge=run == 0)
            if result.challenger is not None:
                return result
        raise AssertionError("the challenger has not won")


def challenge(result: RunResult) -> Challenge:
    """The challenger of a run that has handed one in."""
    assert result.challenger is not None
    return result.challenger


def right(folder: str | Path) -> float:
    """Share of right answers on the turned rule."""
    x, labels = task(500, 99)
    y = 2.0 - np.asarray(labels, np.float64)
    made = InferenceModel(Path(folder) / "model.onnx").predict(x).argmax(axis=1)
    return float((made == y).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_it_wins_where_what_is_known_is_in_the_way(tmp_path: Path, bundle: Bundle, kind: Any) -> None:
    world = World(tmp_path, bundle, kind)
    result = world.until_won(world.trainee())
    won = challenge(result)
    assert np.mean(won.contest.candidate) < np.mean(won.contest.champion) - 0.3
    assert right(won.candidate) > right(result.candidate) + 0.1
    assert [m.state for m in world.shop.reported(ChallengerState)][::2] == ["begun"]


def test_its_memory_is_of_the_new_world_and_stays_in_the_log(tmp_path: Path, bundle: Bundle) -> None:
    world = World(tmp_path, bundle)
    trainee = world.trainee()
    result = world.until_won(trainee)
    world.shop.champion = challenge(result).candidate
    going_on = world.run(trainee)
    assert "going on from the challenger" in world.shop.reported(LogLine)[-1].what
    assert going_on.challenger is None
    assert result.last_offset is not None
    old = {offset for offset in going_on.memory if offset <= result.last_offset}
    assert old <= set(result.memory), "rows it goes on with were protected"
    assert min(going_on.memory) > 3 * 90 - 60, "all but the first are of the new world"
    assert right(going_on.candidate) > right(result.candidate) + 0.1


def test_where_the_gate_refuses_it_the_learner_stays_what_it_was(tmp_path: Path, bundle: Bundle) -> None:
    with_one, without = (
        World(tmp_path / "with", bundle),
        World(tmp_path / "without", bundle, challenger="off"),
    )
    ends = []
    for world in (with_one, without):
        trainee = world.trainee()
        for _ in range(3):
            world.run(trainee, turned=False)
        for run in range(4):
            result = world.run(trainee, challenge=run == 0)
        ends.append((weights(world.engine), model_bytes(result)))
    assert ends[0] == ends[1]
    assert with_one.shop.reported(ChallengerState)


def test_it_is_given_up_where_nothing_has_changed(tmp_path: Path, bundle: Bundle) -> None:
    world = World(tmp_path, bundle)
    trainee = world.trainee()
    for run in range(ROWS // 90 + 6):
        assert world.run(trainee, turned=False, challenge=run == 3).challenger is None
    assert [m.state for m in world.shop.reported(ChallengerState)] == ["begun", "lost"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_bit_by_bit_in_another_process(tmp_path: Path, bundle: Bundle, kind: Any) -> None:
    ends = []
    for name in ("one", "each"):
        world = World(tmp_path / name, bundle, kind)
        trainee = world.trainee() if name == "one" else None
        result = world.until_won(trainee)
        world.shop.champion = challenge(result).candidate
        beside = replace(result, candidate=challenge(result).candidate)
        ends.append((model_bytes(result), model_bytes(beside), result.memory,
                     model_bytes(world.run(trainee or world.trainee()))))  # fmt: skip
    assert ends[0] == ends[1]


def test_a_run_that_was_stopped_takes_its_challenger_up_again(tmp_path: Path, bundle: Bundle) -> None:
    ends = []
    for stops in ([], [1, 30]):
        world = World(tmp_path / str(len(stops)), bundle)
        for _ in range(3):
            world.run(world.trainee(), turned=False)
        world.run(world.trainee(), challenge=True)
        world.feed(turned=True)
        for steps in stops:
            with pytest.raises(InterruptedRunError):
                world.trainee(stopping=after(steps)).run(world.shop.request())
        result = world.trainee().run(world.shop.request())
        result = world.run(world.trainee())
        ends.append((model_bytes(result), result.memory))
    assert ends[0] == ends[1]


def test_a_checkpoint_from_before_knows_of_none(tmp_path: Path, bundle: Bundle) -> None:
    old = World(tmp_path, bundle, challenger="off")
    old.run(old.trainee(), turned=False)
    new = World(tmp_path, bundle)
    new.shop.champion = old.shop.champion
    new.shop.request()  # the first run was the other's
    new.shop.feed(*task(80, 50))
    result = new.trainee().run(new.shop.request(challenge=True))
    assert new.shop.reported(ChallengerState)[0].state == "begun"
    assert not (result.candidate / MARK_FILE).exists()


def test_none_begins_beside_a_guide(tmp_path: Path, bundle: Bundle) -> None:
    world = World(tmp_path, bundle, PortableEngine, guide="l2sp")
    trainee = world.trainee()
    world.run(trainee, turned=False)
    world.run(trainee, challenge=True)
    assert not world.shop.reported(ChallengerState)
