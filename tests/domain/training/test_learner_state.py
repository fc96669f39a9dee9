import json

import numpy as np

from edged.domain.training.learner_state import LearnerState, MemoryRules, RunPlan


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
