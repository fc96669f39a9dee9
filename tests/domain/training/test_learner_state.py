from __future__ import annotations

import json

import numpy as np
import pytest

from edged.domain.training.learner_state import Average, LearnerState, MemoryRules, RunPlan


def test_a_state_comes_back_from_json_with_the_same_random_numbers() -> None:
    state = LearnerState.fresh(MemoryRules(10, 0, 100, 0.0), seed=3)
    state.memory.add(np.arange(30), state.rng)
    state.moments.update(np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32))
    state.plan, state.step, state.excluded = RunPlan(1, "labels", 5, 30, 50, 1e-3, 0.25, 60, 0, 50), 17, [4]
    values, arrays = state.dump()
    again = LearnerState.load(json.loads(json.dumps(values)), arrays, MemoryRules(10, 0, 100, 0.0))
    assert again.plan == state.plan
    assert (again.step, again.excluded, again.memory.seen) == (17, [4], 30)
    assert again.memory.ids.tolist() == state.memory.ids.tolist()
    assert again.rng.random(5).tolist() == state.rng.random(5).tolist()
    assert again.moments.scale()[0].tolist() == state.moments.scale()[0].tolist()


def test_a_smaller_memory_in_the_configuration_cuts_the_old_one() -> None:
    state = LearnerState.fresh(MemoryRules(10, 0, 100, 0.0), seed=3)
    state.memory.add(np.arange(10), state.rng)
    values, arrays = state.dump()
    assert len(LearnerState.load(values, arrays, MemoryRules(4, 0, 100, 0.0)).memory.ids) == 4


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
    for name in ("w", "b"):
        np.testing.assert_allclose(one.values[name], together.values[name], rtol=1e-6)
    assert together.values["w"][0, 0] == pytest.approx(1 - 0.9**5)


def test_the_average_does_not_share_memory_with_the_weights() -> None:
    average, given = Average(0.5), weights(1.0)
    average.follow(given, 1)
    given["w"][...] = 9.0
    assert average.values is not None
    assert average.values["w"][0, 0] == 1.0


def test_it_comes_back_from_a_checkpoint() -> None:
    average = Average(0.9)
    average.follow(weights(1.0), 1)
    average.follow(weights(3.0), 4)
    again = Average.load(0.9, {**average.dump(), "memory_ids": np.arange(3)})
    assert again.values is not None
    assert average.values is not None
    assert {name: value.tobytes() for name, value in again.values.items()} == {
        name: value.tobytes() for name, value in average.values.items()
    }


def test_without_a_decay_nothing_is_kept() -> None:
    average = Average(0.0)
    average.follow(weights(1.0), 1)
    assert average.values is None
    assert Average.load(0.0, {"average/w": np.zeros(2, np.float32)}).values is None
