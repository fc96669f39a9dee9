"""Weights made small, and made whole again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from edged.domain.training.weight_coding import (
    Coded,
    code,
    decode,
    fingerprint,
)
from edged.errors import CorruptError, ModelError
from edged.mqtt import weight_encoding

Floats = np.ndarray[Any, np.dtype[np.float32]]
NUMBERS = st.floats(-1e6, 1e6, width=32)
TENSORS = arrays(np.float32, array_shapes(min_dims=0, max_dims=3, max_side=12), elements=NUMBERS)


def drawn(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(TENSORS)
def test_float32_comes_back_bit_by_bit(value: Floats) -> None:
    back = decode(code({"w": value}, "float32"))["w"]
    assert back.tobytes() == value.tobytes()
    assert back.shape == value.shape


@given(TENSORS)
def test_int8_errs_by_half_a_step_of_its_row_at_most(value: Floats) -> None:
    back = decode(code({"w": value}, "int8"))["w"]
    rows = value.reshape(len(value), -1) if value.ndim > 1 else value.reshape(1, -1)
    step = np.abs(rows).max(axis=1, initial=0.0) / 127.0
    error = np.abs(back.reshape(rows.shape).astype(np.float64) - rows).max(axis=1, initial=0.0)
    assert (error <= step * 0.5001 + 1e-30).all()


def test_named_tensors_stay_exact() -> None:
    weights = {"mean": drawn(3, 200), "w": drawn(4, 200)}
    coded = code(weights, "int8", exact={"mean"})
    assert coded["mean"].values.dtype == np.float32
    assert np.array_equal(decode(coded)["mean"], weights["mean"])


def test_a_number_that_is_not_finite_is_named() -> None:
    with pytest.raises(ModelError, match="parameter w"):
        code({"w": np.array([np.nan], np.float32)}, "int8")


def test_scales_that_do_not_fit_are_damage() -> None:
    with pytest.raises(CorruptError, match="parameter w"):
        decode({"w": Coded(np.zeros((2, 2), np.int8), np.ones(3, np.float32))})


@given(TENSORS)
def test_coded_tensors_come_back_from_the_wire(value: Floats) -> None:
    coded = code({"w": value, "exact": value}, "int8", exact={"exact"})
    back = weight_encoding.unpack_coded(weight_encoding.pack_coded(coded))
    assert fingerprint(decode(back)) == fingerprint(decode(coded))


def test_fingerprints_tell_names_shapes_and_values_apart() -> None:
    value = drawn(7, 2, 3)
    same = fingerprint({"a": value, "b": value})
    assert fingerprint({"b": value.copy(), "a": value}) == same
    other = [{"a": value}, {"a": value.T, "b": value}, {"a": value, "b": value + 1}]
    assert same not in {fingerprint(weights) for weights in other}
