"""Many updates made one, compared with numpy; and what a share of bad ones does."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from edged.domain.arrays import Floats
from edged.domain.training.weight_coding import code, decode
from edged.errors import CorruptError, NoDataError
from edged.fleet.config import ReduceSection
from edged.fleet.rules import aggregation
from edged.fleet.rules.aggregation import RoundUpdate, aggregate
from edged.fleet.rules.layout import EncodedUpdate, Layout

SHAPES = {"b": (5,), "scalar": (), "w": (7, 5), "conv": (3, 2, 2)}
LAYOUT = Layout.of({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})
INT8: Literal["int8"] = "int8"
MEAN, MEDIAN = ReduceSection(how="mean"), ReduceSection(how="median")


def trimmed(share: float) -> ReduceSection:
    return ReduceSection(how="trimmed_mean", trim=share)


def stored(samples: int, factor: float, row: EncodedUpdate) -> RoundUpdate:
    """Return an update whose row lies in memory."""
    data = row.to_bytes()
    return RoundUpdate(samples, factor, lambda start, size: data[start : start + size])


def contributions(count: int, seed: int = 0) -> list[RoundUpdate]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        change = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
        made.append(
            stored(int(rng.integers(1, 500)), float(rng.uniform(0.2, 1)), LAYOUT.row(code(change, INT8)))
        )
    return made


def dense(given: list[RoundUpdate]) -> np.ndarray:
    return np.stack([LAYOUT.change(c.row(LAYOUT)).astype(np.float64) * c.factor for c in given])


def test_the_layout_goes_there_and_back() -> None:
    weights = {name: np.random.default_rng(1).normal(size=s).astype(np.float32) for name, s in SHAPES.items()}
    back = LAYOUT.weights(LAYOUT.vector(weights))
    assert all(np.array_equal(back[name], weights[name]) for name in SHAPES)
    assert back["scalar"].shape == ()


def test_the_mean_is_weighed_by_samples() -> None:
    given = contributions(50)
    weights = [c.samples for c in given]
    assert np.allclose(
        aggregate(MEAN, given, LAYOUT), np.average(dense(given), axis=0, weights=weights), atol=1e-12
    )


@pytest.mark.parametrize("count", [1, 2, 9, 40])
def test_the_trimmed_mean_of_int8_is_exact(count: int) -> None:
    given = contributions(count)
    ordered = np.sort(dense(given), axis=0)
    cut = int(0.2 * count)
    expected = ordered[cut : count - cut].mean(axis=0)
    assert np.allclose(aggregate(trimmed(0.2), given, LAYOUT), expected, atol=1e-6)


@pytest.mark.parametrize("count", [1, 8, 41])
def test_the_median_of_int8_is_exact(count: int) -> None:
    given = contributions(count)
    assert np.allclose(aggregate(MEDIAN, given, LAYOUT), np.median(dense(given), axis=0), atol=1e-6)


def test_tensors_that_did_not_change_count_as_zero() -> None:
    moved = stored(1, 1.0, LAYOUT.row(code({"b": np.ones(5, np.float32)}, INT8)))
    found = aggregate(MEAN, [moved, stored(3, 1.0, LAYOUT.row({}))], LAYOUT)
    assert np.allclose(found, LAYOUT.change(moved.row(LAYOUT)) / 4)


def test_a_tenth_of_bad_devices_hardly_moves_the_trimmed_mean() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(size=LAYOUT.size)
    honest = truth + rng.normal(scale=0.5, size=(90, LAYOUT.size))
    bad = np.concatenate([-5.0 * honest[:5], 100.0 * honest[5:10]])
    rows = np.concatenate([honest, bad]).astype(np.float32)
    given = [stored(1, 1.0, LAYOUT.row(code(LAYOUT.weights(row), INT8))) for row in rows]

    def error(found: np.ndarray) -> float:
        return float(np.linalg.norm(found - truth))

    clean = error(aggregate(trimmed(0.15), given[:90], LAYOUT))
    assert error(aggregate(trimmed(0.15), given, LAYOUT)) < 2 * clean
    assert error(aggregate(MEAN, given, LAYOUT)) > 20 * clean


def test_int8_changes_the_mean_of_a_hundred_by_less_than_a_hundredth() -> None:
    rng = np.random.default_rng(4)
    changes: list[dict[str, Floats]] = [
        {"w": rng.laplace(size=(40, 30)).astype(np.float32)} for _ in range(100)
    ]
    layout = Layout.of(changes[0])
    mean = aggregate(MEAN, [stored(1, 1.0, layout.row(code(change, INT8))) for change in changes], layout)
    exact = np.mean([layout.vector(change) for change in changes], axis=0, dtype=np.float64)
    assert np.linalg.norm(mean - exact) < 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize("rule", [MEAN, MEDIAN, trimmed(0.1)])
def test_nothing_has_no_mean(rule: ReduceSection) -> None:
    with pytest.raises(NoDataError):
        aggregate(rule, [], LAYOUT)


@pytest.mark.parametrize("numbers", [1, 20, 64])
def test_blocks_of_columns_make_the_same_statistic_as_all_at_once(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = contributions(4)
    whole = aggregate(MEDIAN, given, LAYOUT)
    monkeypatch.setattr(aggregation, "BLOCK_NUMBERS", numbers)
    assert np.array_equal(aggregate(MEDIAN, given, LAYOUT), whole)


def test_a_row_is_the_update_and_survives_as_bytes() -> None:
    weights = {"w": np.random.default_rng(5).normal(size=(20, 30)).astype(np.float32)}
    layout, coded = Layout.of(weights), code(weights, INT8)
    row = layout.row(coded)
    assert np.array_equal(layout.change(row), layout.vector(decode(coded)))
    assert np.array_equal(layout.change(layout.from_bytes(row.to_bytes())), layout.change(row))
    with pytest.raises(CorruptError):
        layout.from_bytes(row.to_bytes() + b"x")
