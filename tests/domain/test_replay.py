import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.replay import Reservoir, draw


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 20))
def test_never_larger_than_its_capacity_and_only_what_was_offered(chunks: list[int], capacity: int) -> None:
    memory, rng, offered = Reservoir(capacity), np.random.default_rng(1), 0
    for size in chunks:
        memory.add(np.arange(offered, offered + size), rng)
        offered += size
    assert memory.seen == offered
    assert len(memory.ids) == min(capacity, offered)
    assert len(set(memory.ids.tolist())) == len(memory.ids)
    assert all(0 <= i < offered for i in memory.ids.tolist())


def test_every_sample_is_kept_with_the_same_probability() -> None:
    hits = np.zeros(100)
    for seed in range(2000):
        memory, rng = Reservoir(10), np.random.default_rng(seed)
        for start in range(0, 100, 7):
            memory.add(np.arange(start, min(start + 7, 100)), rng)
        hits[memory.ids] += 1
    # 2,000 draws with p = 0.1: mean 200, standard deviation 13.4
    assert abs(hits - 200).max() < 5 * 13.4


def test_a_capacity_of_nothing_keeps_nothing() -> None:
    memory = Reservoir(0)
    memory.add(np.arange(5), np.random.default_rng(0))
    assert len(memory.ids) == 0


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 64), st.floats(0, 1))
def test_batches_are_full_and_within_bounds(new: int, old: int, batch: int, share: float) -> None:
    fresh, remembered = draw(new, old, batch, share, np.random.default_rng(0))
    assert len(fresh) + len(remembered) == (batch if new or old else 0)
    assert (fresh < max(new, 1)).all()
    assert (remembered < max(old, 1)).all()
    if new:
        assert len(fresh) >= 1
