"""Many updates made one, compared with numpy; and what a share of bad ones does."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from edged.domain.training.weight_coding import Floats, code, decode
from edged.errors import CorruptError, NoDataError
from edged.fleet.rules.admission import discount
from edged.fleet.rules.aggregation import AdmittedUpdate, Matrix, Mean, Reducer, median, trimmed_mean
from edged.fleet.rules.layout import Layout
from tests.fleet.matrix import InMemoryMatrix

SHAPES = {"b": (5,), "scalar": (), "w": (7, 5), "conv": (3, 2, 2)}
LAYOUT = Layout.of({name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()})
INT8: Literal["int8"] = "int8"


def contributions(count: int, seed: int = 0) -> list[AdmittedUpdate]:
    rng = np.random.default_rng(seed)
    made = []
    for device in range(count):
        change = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
        made.append(
            AdmittedUpdate(
                f"d{device}",
                int(rng.integers(1, 500)),
                float(rng.uniform(0.2, 1)),
                LAYOUT.row(code(change, INT8)),
            )
        )
    return made


def reduced(reducer: Reducer, given: list[AdmittedUpdate]) -> np.ndarray:
    reducer.begin(LAYOUT, len(given))
    for contribution in given:
        reducer.add(contribution)
    found = reducer.finish()
    assert found.devices == len(given)
    assert found.samples == sum(c.samples for c in given)
    return found.change


def dense(given: list[AdmittedUpdate]) -> np.ndarray:
    return np.stack([LAYOUT.change(c.row).astype(np.float64) * c.factor for c in given])


def test_the_layout_goes_there_and_back() -> None:
    weights = {name: np.random.default_rng(1).normal(size=s).astype(np.float32) for name, s in SHAPES.items()}
    back = LAYOUT.weights(LAYOUT.vector(weights))
    assert all(np.array_equal(back[name], weights[name]) for name in SHAPES)
    assert back["scalar"].shape == ()


def test_the_mean_is_weighed_by_samples() -> None:
    given = contributions(50)
    weights = [c.samples for c in given]
    assert np.allclose(reduced(Mean(), given), np.average(dense(given), axis=0, weights=weights), atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 9, 40])
def test_the_trimmed_mean_of_int8_is_exact(count: int) -> None:
    given = contributions(count)
    ordered = np.sort(dense(given), axis=0)
    cut = int(0.2 * count)
    expected = ordered[cut : count - cut].mean(axis=0)
    assert np.allclose(reduced(Matrix(trimmed_mean(0.2), InMemoryMatrix()), given), expected, atol=1e-6)


@pytest.mark.parametrize("count", [1, 8, 41])
def test_the_median_of_int8_is_exact(count: int) -> None:
    given = contributions(count)
    assert np.allclose(
        reduced(Matrix(median, InMemoryMatrix()), given), np.median(dense(given), axis=0), atol=1e-6
    )


def test_tensors_that_did_not_change_count_as_zero() -> None:
    moved = AdmittedUpdate("a", 1, 1.0, LAYOUT.row(code({"b": np.ones(5, np.float32)}, INT8)))
    found = reduced(Mean(), [moved, AdmittedUpdate("b", 3, 1.0, LAYOUT.row({}))])
    assert np.allclose(found, LAYOUT.change(moved.row) / 4)


def test_a_tenth_of_bad_devices_hardly_moves_the_trimmed_mean() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(size=LAYOUT.size)
    honest = truth + rng.normal(scale=0.5, size=(90, LAYOUT.size))
    bad = np.concatenate([-5.0 * honest[:5], 100.0 * honest[5:10]])
    rows = np.concatenate([honest, bad]).astype(np.float32)
    given = [
        AdmittedUpdate(str(n), 1, 1.0, LAYOUT.row(code(LAYOUT.weights(row), INT8)))
        for n, row in enumerate(rows)
    ]

    def error(found: np.ndarray) -> float:
        return float(np.linalg.norm(found - truth))

    clean = error(reduced(Matrix(trimmed_mean(0.15), InMemoryMatrix()), given[:90]))
    assert error(reduced(Matrix(trimmed_mean(0.15), InMemoryMatrix()), given)) < 2 * clean
    assert error(reduced(Mean(), given)) > 20 * clean


def test_int8_changes_the_mean_of_a_hundred_by_less_than_a_hundredth() -> None:
    rng = np.random.default_rng(4)
    changes: list[dict[str, Floats]] = [
        {"w": rng.laplace(size=(40, 30)).astype(np.float32)} for _ in range(100)
    ]
    layout = Layout.of(changes[0])
    mean = Mean()
    mean.begin(layout, 100)
    for change in changes:
        mean.add(AdmittedUpdate("d", 1, 1.0, layout.row(code(change, INT8))))
    exact = np.mean([layout.vector(change) for change in changes], axis=0, dtype=np.float64)
    assert np.linalg.norm(mean.finish().change - exact) < 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "reducer", [Mean(), Matrix(median, InMemoryMatrix()), Matrix(trimmed_mean(0.1), InMemoryMatrix())]
)
def test_nothing_has_no_mean(reducer: Reducer) -> None:
    reducer.begin(LAYOUT, 0)
    with pytest.raises(NoDataError):
        reducer.finish()


def test_what_is_late_counts_less() -> None:
    assert [round(discount(late), 3) for late in range(3)] == [1.0, 0.707, 0.577]


def test_a_row_is_the_update_and_survives_as_bytes() -> None:
    weights = {"w": np.random.default_rng(5).normal(size=(20, 30)).astype(np.float32)}
    layout, coded = Layout.of(weights), code(weights, INT8)
    row = layout.row(coded)
    assert np.array_equal(layout.change(row), layout.vector(decode(coded)))
    assert np.array_equal(layout.change(layout.from_bytes(row.to_bytes())), layout.change(row))
    with pytest.raises(CorruptError):
        layout.from_bytes(row.to_bytes() + b"x")
