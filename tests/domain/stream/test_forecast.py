"""Labels from the future of the same key."""

from __future__ import annotations

import tracemalloc

import numpy as np

from edged.domain.stream.forecast import MOST_KEYS, Forecast
from edged.domain.stream.sample import Batch


def batch(first: int, keys: list[str]) -> Batch:
    """A sample of each key, whose feature is its offset."""
    offsets, none = np.arange(first, first + len(keys)), [None] * len(keys)
    t = offsets.astype(float)
    return Batch(offsets, keys, t, t, offsets[:, None].astype(np.float32), [*none], [*none])


def test_a_label_is_what_came_later_of_the_same_key() -> None:
    forecast = Forecast((0,), 2)
    assert forecast.update(batch(1, ["a", "b", "a"])) == []
    made = forecast.update(batch(4, ["a", "b", "b"]))
    assert [(update.offset, update.label) for update in made] == [(1, 4.0), (2, 6.0)]


def test_memory_is_bounded_however_many_keys_there_are() -> None:
    forecast, size = Forecast((0,), 2), 1000
    for first in range(0, MOST_KEYS, size):
        forecast.update(batch(first, [f"key-{first + i}" for i in range(size)]))
    tracemalloc.start()
    try:
        for first in range(MOST_KEYS, 10 * MOST_KEYS, size):
            forecast.update(batch(first, [f"key-{first + i}" for i in range(size)]))
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 2000 * MOST_KEYS, "no more than the newest keys are kept"
    later = batch(10 * MOST_KEYS, ["key-1", f"key-{10 * MOST_KEYS - 1}"] * 2)
    assert [update.offset for update in forecast.update(later)] == [10 * MOST_KEYS - 1]
