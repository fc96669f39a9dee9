"""Sums from which a layer is solved: the same model whatever the partition and the order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.domain.federated.head_statistics import HeadStatistics, length
from edged.errors import CorruptError, NoDataError

WIDTH, CLASSES, PENALTY = 7, 3, 10.0


def drawn(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = np.maximum(rng.normal(size=(rows, WIDTH)) * rng.uniform(0.1, 50, WIDTH), 0).astype(np.float32)
    inputs[:, 3] = 4.0  # a constant
    return inputs, rng.integers(0, CLASSES, rows)


def central(inputs: np.ndarray, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression of all rows at once, by a decomposition of the rows themselves."""
    x = inputs.astype(np.float64)
    spread = x.std(axis=0)
    floored = np.sqrt(spread**2 + (0.25 * np.median(spread[spread > 0])) ** 2)
    scale = np.where(spread > 0, 1 / floored, 0)
    z, y = (x - x.mean(axis=0)) * scale, np.eye(CLASSES)[classes]
    longer = np.concatenate([z, np.sqrt(PENALTY) * np.eye(WIDTH)])
    weights = np.linalg.lstsq(longer, np.concatenate([y - y.mean(axis=0), np.zeros((WIDTH, CLASSES))]))[0]
    weights = (weights * scale[:, None]).T
    return weights, y.mean(axis=0) - weights @ x.mean(axis=0)


@given(
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(0, 3000), max_size=30),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_any_partition_in_any_order_gives_the_layer_of_central_training(
    seed: int, cuts: list[int], order: object
) -> None:
    inputs, classes = drawn(3000, seed)
    edges = [0, *sorted(cuts), 3000]
    parts = list(pairwise(edges))
    order.shuffle(parts)  # type: ignore[attr-defined]
    sums = [HeadStatistics.of(inputs[a:b], classes[a:b], CLASSES) for a, b in parts]
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    for found, expected in zip(total.solved(PENALTY, 1.0), central(inputs, classes), strict=True):
        assert np.abs(found - expected).max() <= 1e-6


def test_a_device_is_taken_away_by_subtraction() -> None:
    inputs, classes = drawn(900, 1)
    all_of_them, one = (HeadStatistics.of(inputs[:n], classes[:n], CLASSES) for n in (900, 300))
    rest = all_of_them - one
    assert rest.rows == 600
    expected = central(inputs[300:], classes[300:])
    for found, wanted in zip(rest.solved(PENALTY, 1.0), expected, strict=True):
        assert np.abs(found - wanted).max() <= 1e-6


def test_the_numbers_on_the_line_are_the_sums_again() -> None:
    sums = HeadStatistics.of(*drawn(50, 2), CLASSES)
    vector = sums.vector()
    assert vector.shape == (length(WIDTH, CLASSES),)
    again = HeadStatistics.from_vector(vector, WIDTH, CLASSES)
    assert (again.gram == sums.gram).all()
    assert (again.by_target == sums.by_target).all()
    with pytest.raises(CorruptError, match="is not"):
        HeadStatistics.from_vector(vector[:-1], WIDTH, CLASSES)


def test_one_class_is_no_model() -> None:
    inputs, _ = drawn(50, 3)
    with pytest.raises(NoDataError, match="fewer than two classes"):
        HeadStatistics.of(inputs, np.zeros(50, np.int64), CLASSES).solved(PENALTY, 1.0)
