from __future__ import annotations

import json
import math

import numpy as np
import pytest

from edged.domain.training.learner_state import Average, LearnerState, MemoryRules, RunPlan


def test_a_state_comes_back_from_json_with_the_same_random_numbers() -> None:
    state = LearnerState.fresh(MemoryRules(10, 100), seed=3)
    state.memory.add(np.arange(30), state.rng)
    state.moments.update(np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32))
    state.plan, state.step, state.excluded = RunPlan(1, "labels", 5, 30, 50, 1e-3), 17, [4]
    values, arrays = state.dump()
    again = LearnerState.load(json.loads(json.dumps(values)), arrays, MemoryRules(10, 100))
    assert again.plan == state.plan
    assert (again.step, again.excluded, again.memory.seen) == (17, [4], 30)
    assert again.memory.ids.tolist() == state.memory.ids.tolist()
    assert again.rng.random(5).tolist() == state.rng.random(5).tolist()
    assert again.moments.scale()[0].tolist() == state.moments.scale()[0].tolist()


def test_a_smaller_memory_in_the_configuration_cuts_the_old_one() -> None:
    state = LearnerState.fresh(MemoryRules(10, 100), seed=3)
    state.memory.add(np.arange(10), state.rng)
    values, arrays = state.dump()
    assert len(LearnerState.load(values, arrays, MemoryRules(4, 100)).memory.ids) == 4


def weights(value: float) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {"w": np.full((2, 2), value, np.float32), "b": np.full(2, -value, np.float32)}


def test_steps_taken_together_count_like_steps_one_by_one() -> None:
    one, together = Average(0.9), Average(0.9)
    for average in (one, together):
        average.follow(weights(0.0), 1)
    for _ in range(5):
        one.follow(weights(1.0), 1)
    together.follow(weights(1.0), 5)
    assert one.values is not None
    assert together.values is not None
    assert one.short is not None
    assert together.short is not None
    for name in ("w", "b"):
        np.testing.assert_allclose(one.values[name], together.values[name], rtol=1e-6)
        np.testing.assert_allclose(one.short[name], together.short[name], rtol=1e-6)
    assert together.values["w"][0, 0] == pytest.approx(1 - 0.9**5)


def test_the_average_does_not_share_memory_with_the_weights() -> None:
    average, given = Average(0.5), weights(1.0)
    average.follow(given, 1)
    given["w"][...] = 9.0
    for kept in (average.values, average.short):
        assert kept is not None
        assert kept["w"][0, 0] == 1.0


def test_the_short_average_is_near_the_newest_weights_and_never_longer_than_the_long_one() -> None:
    average, quick = Average(0.99), Average(0.5)
    for each in (average, quick):
        each.follow(weights(0.0), 1)
        each.follow(weights(1.0), 30)
    assert average.values is not None
    assert average.short is not None
    assert average.values["w"][0, 0] == pytest.approx(1 - 0.99**30)
    assert average.short["w"][0, 0] == pytest.approx(1 - 0.97**30)
    assert quick.values is not None
    assert quick.short is not None
    assert quick.short["w"][0, 0] == quick.values["w"][0, 0]


def test_the_long_one_is_taken_while_it_does_better_and_left_when_the_world_moves() -> None:
    average = Average(0.99)
    assert average.chosen is None
    average.follow(weights(1.0), 1)
    chosen = [average.chosen is average.values]
    for long in [0.4, *[0.6] * 20]:
        average.judge(0.5, long, 100)
        chosen.append(average.chosen is average.values)
    assert chosen[:2] == [False, True]
    assert chosen[-1] is False
    assert average.chosen is average.short


def test_a_loss_that_is_not_finite_says_nothing() -> None:
    average = Average(0.99)
    average.follow(weights(1.0), 1)
    average.judge(0.5, 0.4, 10)
    for short, long in ((math.nan, 0.1), (0.1, math.inf)):
        average.judge(short, long, 1000)
    assert average.better
    assert average.losses == pytest.approx((5.0, 4.0))


def test_it_comes_back_from_a_checkpoint() -> None:
    average = Average(0.9)
    average.follow(weights(1.0), 1)
    average.follow(weights(3.0), 4)
    average.judge(0.5, 0.4, 10)
    values, arrays = average.dump()
    again = Average.load(0.9, json.loads(json.dumps(values)), {**arrays, "memory_ids": np.arange(3)})
    assert again.better
    assert again.losses == average.losses
    for kept, before in ((again.values, average.values), (again.short, average.short)):
        assert kept is not None
        assert before is not None
        assert {name: value.tobytes() for name, value in kept.items()} == {
            name: value.tobytes() for name, value in before.items()
        }


def test_a_checkpoint_of_an_earlier_version_has_no_short_one() -> None:
    again = Average.load(0.99, {"losses": [0.4, 0.5]}, {"average/w": np.ones(2, np.float32)})
    assert again.values is not None
    assert again.chosen is None, "the weights themselves, which had done better"
    again.follow({"w": np.zeros(2, np.float32)}, 8)
    assert again.chosen is again.short


def test_without_a_decay_nothing_is_kept() -> None:
    average = Average(0.0)
    average.follow(weights(1.0), 1)
    assert average.values is None
    assert average.chosen is None
    held = {f"{which}average/w": np.zeros(2, np.float32) for which in ("", "short_")}
    assert Average.load(0.0, {"losses": [0.5, 0.4]}, held).chosen is None
