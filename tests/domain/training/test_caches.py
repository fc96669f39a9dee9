"""What is kept between runs is what would be read anew."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.stream.sample import Window
from edged.domain.training.batch_pool import KeyCache, RowCache, codes_of

Offsets = np.ndarray[tuple[int], np.dtype[np.int64]]


class Shelf:
    """Samples by offset, that count how often their rows were read, and note whose keys were."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.label, self.machines = 0.0, 1
        self.keyed: list[list[int]] = []

    def rows(self, offsets: Offsets) -> Window:
        self.reads.append(len(offsets))
        there = offsets[offsets != 3]
        y = np.full((len(there), 1), self.label, np.float32)
        return Window(there, there + 100, there[:, None].astype(np.float32), y)

    def keys(self, offsets: Offsets) -> list[str | None]:
        self.keyed.append(offsets.tolist())
        return [None if o % 17 == 16 else f"machine {o * o % self.machines}" for o in offsets.tolist()]


def test_only_rows_that_are_new_to_the_memory_are_read() -> None:
    shelf = Shelf()
    cache = RowCache(shelf)
    cache.rows(np.arange(2, 8), 0)
    again = cache.rows(np.array([1, 4, 6, 9]), 0)
    assert again.offsets.tolist() == [1, 4, 6, 9]
    assert again.seq.tolist() == [101, 104, 106, 109]
    assert again.x[:, 0].tolist() == [1, 4, 6, 9]
    assert shelf.reads == [6, 2]


def test_a_corrected_label_is_read_again() -> None:
    shelf = Shelf()
    cache = RowCache(shelf)
    cache.rows(np.arange(5), 0)
    shelf.label = 1.0
    assert cache.rows(np.arange(5), 0).y.sum() == 0
    assert cache.rows(np.arange(5), 1).y.sum() == 4


@given(st.lists(st.lists(st.integers(0, 60), max_size=30), min_size=1, max_size=8), st.integers(1, 20))
def test_keys_that_were_kept_have_the_numbers_of_keys_read_anew(runs: list[list[int]], machines: int) -> None:
    shelf = Shelf()
    shelf.machines = machines
    cache = KeyCache(shelf)
    for run in runs:
        offsets = np.array(run, np.int64)
        oldest_first, place = np.unique(offsets, return_inverse=True)
        assert cache.codes(offsets).tolist() == codes_of(shelf.keys(oldest_first))[place].tolist()


def test_only_keys_of_new_samples_are_read() -> None:
    shelf = Shelf()
    cache = KeyCache(shelf)
    cache.codes(np.array([5, 2, 3]))
    cache.codes(np.array([7, 3, 5]))
    assert shelf.keyed == [[2, 3, 5], [7]]
