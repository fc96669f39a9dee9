import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.training.batch_pool import BatchMix, Recent, Reservoir


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


@given(
    st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(1, 64), st.floats(0, 1),
    st.floats(0, 1),
)  # fmt: skip
def test_batches_are_full_and_of_groups_that_have_rows(
    new: int, recent: int, remembered: int, batch: int, new_share: float, recent_share: float
) -> None:
    groups = (new, recent, remembered)
    counts = BatchMix(new_share, recent_share).counts(batch, *groups)
    assert sum(counts) == (batch if any(groups) else 0)
    assert all(count == 0 or group > 0 for count, group in zip(counts, groups, strict=True))
    assert all(count >= 0 for count in counts)
    assert (counts[0] >= 1) == (new > 0)


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(0, 20))
def test_the_short_memory_holds_the_newest(chunks: list[int], capacity: int) -> None:
    recent, offered = Recent(capacity), 0
    for size in chunks:
        recent.add(np.arange(offered, offered + size))
        offered += size
    assert recent.ids.tolist() == list(range(max(0, offered - capacity), offered))


def test_a_drift_shortens_it() -> None:
    recent = Recent(100)
    recent.add(np.arange(80))
    recent.shorten(5)
    assert recent.ids.tolist() == [75, 76, 77, 78, 79]


def test_the_short_memory_reaches_no_further_back_where_few_samples_get_labels() -> None:
    recent = Recent(100)
    recent.add(np.arange(0, 4000, 10))
    assert recent.ids.tolist() == list(range(3850, 4000, 10))
    recent.add(np.arange(4000, 40_000, 1000))
    assert recent.ids.tolist() == list(range(30_000, 40_000, 1000))  # a tenth of it stays, however old
    recent.add(np.arange(40_000, 40_250))
    assert recent.ids.tolist() == list(range(40_150, 40_250))
