"""Weights made small, and made whole again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from edged.domain.training.weight_deltas import (
    Coded,
    Coding,
    code,
    decode,
    fingerprint,
)
from edged.domain.training.weight_mixing import SHARES, best_share, mixed
from edged.errors import CorruptError, ModelError
from edged.mqtt import update_encoding
from tests.domain.thinned import thinned

Floats = np.ndarray[Any, np.dtype[np.float32]]
NUMBERS = st.floats(-1e6, 1e6, width=32)
TENSORS = arrays(np.float32, array_shapes(min_dims=0, max_dims=3, max_side=12), elements=NUMBERS)


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(TENSORS)
def test_float32_comes_back_bit_by_bit(value: Floats) -> None:
    back = decode(code({"w": value}, Coding()))["w"]
    assert back.tobytes() == value.tobytes()
    assert back.shape == value.shape


@given(TENSORS)
def test_int8_errs_by_half_a_step_of_its_row_at_most(value: Floats) -> None:
    back = decode(code({"w": value}, Coding("int8")))["w"]
    rows = value.reshape(len(value), -1) if value.ndim > 1 else value.reshape(1, -1)
    step = np.abs(rows).max(axis=1, initial=0.0) / 127.0
    error = np.abs(back.reshape(rows.shape).astype(np.float64) - rows).max(axis=1, initial=0.0)
    assert (error <= step * 0.5001 + 1e-30).all()


@given(st.integers(2, 300), st.floats(0.05, 4.0), st.integers(0, 9))
def test_a_coarse_step_errs_by_half_of_it_at_most(size: int, step: float, seed: int) -> None:
    value = drawn(seed, size, 3)
    coded = code({"w": value}, Coding("int8", step=step))["w"]
    assert coded.scale is not None
    assert coded.scale.shape == ()
    error = np.abs(decode({"w": coded})["w"] - value).max()
    width = max(step * float(np.sqrt(np.mean(value**2))), float(np.abs(value).max()) / 127)
    assert error <= 0.5001 * width


def test_float16_of_numbers_too_large_for_it_stays_float32() -> None:
    coded = code({"w": np.array([1.0, 70000.0], np.float32)}, Coding("float16"))
    assert decode(coded)["w"].tolist() == [1.0, 70000.0]


@pytest.mark.parametrize("gaps", [np.uint8, np.uint16, np.uint32])
@given(st.integers(1, 200), st.floats(0.01, 1.0), st.integers(0, 9))
def test_a_sparse_tensor_is_zero_where_nothing_was_sent(
    gaps: Any, size: int, share: float, seed: int
) -> None:
    value = drawn(seed, size, 1)
    coded = thinned({"w": value}, share, gaps)
    assert update_encoding.unpack(update_encoding.pack(coded))["w"].gaps is not None
    back = decode(update_encoding.unpack(update_encoding.pack(coded)))["w"]
    assert back.shape == value.shape
    count = coded["w"].values.size
    largest = np.argsort(-np.abs(value[:, 0]), kind="stable")
    assert np.allclose(back[largest[:count]], value[largest[:count]], atol=np.abs(value).max() / 250)
    assert not back[largest[count:]].any()


def test_named_tensors_stay_exact() -> None:
    weights = {"mean": drawn(3, 200), "w": drawn(4, 200)}
    coded = code(weights, Coding("int8"), exact={"mean"})
    assert coded["mean"].values.dtype == np.float32
    assert np.array_equal(decode(coded)["mean"], weights["mean"])


def test_a_number_that_is_not_finite_is_named() -> None:
    with pytest.raises(ModelError, match="parameter w"):
        code({"w": np.array([np.nan], np.float32)}, Coding("int8"))


@pytest.mark.parametrize(
    "tensor",
    [
        Coded(np.zeros(3, np.float32), (4,)),
        Coded(np.zeros(2, np.int8), (4,), np.float32(1.0).reshape(()), np.array([0, 9], np.uint8)),
        Coded(np.zeros(2, np.float32), (4,), None, np.array([0], np.uint8)),
        Coded(np.zeros((2, 2), np.int8), (2, 2), np.ones(3, np.float32)),
        Coded(np.zeros(2, np.int8), (4,), np.ones(3, np.float32), np.array([0, 0], np.uint8)),
    ],
    ids=["shape", "position outside", "positions missing", "scales", "scales of some positions"],
)
def test_what_does_not_fit_together_is_damaged(tensor: Coded) -> None:
    with pytest.raises(CorruptError, match="parameter w"):
        decode({"w": tensor})


def test_fingerprints_tell_names_shapes_and_values_apart() -> None:
    value = drawn(7, 2, 3)
    same = fingerprint({"a": value, "b": value})
    assert fingerprint({"b": value.copy(), "a": value}) == same
    other = [{"a": value}, {"a": value.T, "b": value}, {"a": value, "b": value + 1}]
    assert same not in {fingerprint(weights) for weights in other}


# ---- mixing ----------------------------------------------------------------------------------------


def test_the_ends_of_the_line_are_exact_and_the_middle_lies_between() -> None:
    own, other = {"w": drawn(8, 50)}, {"w": drawn(9, 50)}
    assert mixed(own, other, 0.0)["w"].tobytes() == own["w"].tobytes()
    assert mixed(own, other, 1.0)["w"].tobytes() == other["w"].tobytes()
    assert np.allclose(mixed(own, other, 0.5)["w"], (own["w"] + other["w"]) / 2, atol=1e-6)


@given(st.dictionaries(st.sampled_from(SHARES), st.floats(allow_nan=True), min_size=1))
def test_the_best_share_has_the_smallest_finite_loss(losses: dict[float, float]) -> None:
    finite = [loss for loss in losses.values() if np.isfinite(loss)]
    best = best_share(losses)
    assert (best is None) == (not finite)
    if best is not None:
        assert losses[best] == min(finite)
