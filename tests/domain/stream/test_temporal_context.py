"""Differences from running means: as the plain recursion has them, in any parts and over restarts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.domain.stream.temporal_context import MOST_KEYS, TemporalContext, pad

HALF_LIVES = (1.0, 12.0, 48.0)


def plain(keys: list[str], x: np.ndarray) -> np.ndarray:
    """The definition, one sample after the other."""
    means: dict[str, np.ndarray] = {}
    made = []
    for key, row in zip(keys, x.astype(np.float64), strict=True):
        known = means.setdefault(key, np.repeat(row[None], len(HALF_LIVES), axis=0))
        made.append(np.concatenate([row, *(row - known)]))
        for i, half_life in enumerate(HALF_LIVES):
            known[i] += (1 - 0.5 ** (1 / half_life)) * (row - known[i])
    return np.array(made)


def stream(n: int, keys: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    return [f"k{i}" for i in rng.integers(0, keys, n)], rng.normal(3, 2, (n, 2)).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 150), min_size=1, max_size=6),
    st.booleans(),
    st.integers(0, 99),
)
def test_it_is_the_plain_recursion_in_any_parts_and_over_restarts(
    count: int, parts: list[int], restart: bool, seed: int
) -> None:
    keys, x = stream(sum(parts), count, seed)
    context, made, at = TemporalContext(HALF_LIVES, 2), [], 0
    for part in parts:
        made.append(context.extend(keys[at : at + part], x[at : at + part]))
        at += part
        if restart:
            done = np.concatenate(made)
            newest = dict(zip(keys, done, strict=False))
            context = TemporalContext(HALF_LIVES, 2)
            context.restore(list(newest), np.array(list(newest.values())))
    found = np.concatenate(made)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, plain(keys, x), rtol=1e-4, atol=1e-4)


def test_a_key_that_is_new_differs_from_nothing() -> None:
    made = TemporalContext(HALF_LIVES, 2).extend(["a", "b"], np.array([[1, 2], [3, 4]], np.float32))
    assert made.tolist() == [[1, 2] + [0] * 6, [3, 4] + [0] * 6]


def test_numbers_at_the_end_of_what_float32_holds_stay_finite() -> None:
    most = np.finfo(np.float32).max
    made = TemporalContext(HALF_LIVES, 1).extend(["a"] * 3, np.array([[-most], [most], [-most]], np.float32))
    assert np.isfinite(made).all()


def test_only_the_keys_heard_last_are_known() -> None:
    context = TemporalContext((1.0,), 1)
    keys = [f"k{i}" for i in range(MOST_KEYS + 1)]
    context.extend(keys, np.ones((len(keys), 1), np.float32))
    made = context.extend([keys[0], keys[-1]], np.full((2, 1), 5, np.float32))
    assert made[:, 1].tolist() == [0, 4]


@pytest.mark.parametrize(("width", "expected"), [(3, [1, 2, 0]), (2, [1, 2]), (1, [1])])
def test_rows_are_brought_to_what_a_model_takes(width: int, expected: list[float]) -> None:
    assert pad(np.array([[1, 2]], np.float32), width).tolist() == [expected]


@pytest.mark.parametrize("glitch", [1e6, -1e6, 3e38, -3e38])
def test_a_glitch_moves_means_as_little_by_itself_as_among_others(glitch: float) -> None:
    rows = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    rows[40] = glitch
    apart, together = (TemporalContext((3, 12, 48), 2) for _ in range(2))
    one = np.concatenate([apart.extend(["a"], row[None]) for row in rows])
    many = np.concatenate([together.extend(["a"] * len(part), part) for part in (rows[:30], rows[30:])])
    assert np.abs(one[41:]).max() < 20
    assert np.abs(many[41:]).max() < 20
