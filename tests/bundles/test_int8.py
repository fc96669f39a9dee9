"""Weights as 8-bit integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from edged.bundles.export.int8 import LARGEST, quantise

WEIGHTS = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=4, max_side=5),
    elements=st.floats(-1e6, 1e6, width=32),
)


@given(WEIGHTS, st.data())
def test_no_weight_is_off_by_more_than_half_a_step_of_its_slice(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], data: st.DataObject
) -> None:
    axis = data.draw(st.integers(0, values.ndim - 1))
    whole, scale = quantise(values, axis)
    assert (whole.shape, scale.shape) == (values.shape, (values.shape[axis],))
    assert np.abs(whole.astype(int)).max() <= LARGEST
    step = scale.reshape([-1 if i == axis else 1 for i in range(values.ndim)]).astype(np.float64)
    off = np.abs(whole * step - values.astype(np.float64))
    assert (off <= step * (0.5 + 1e-4)).all()


def test_a_slice_of_zeros_stays_zero() -> None:
    whole, scale = quantise(np.zeros((2, 3), np.float32), 0)
    assert not whole.any()
    assert np.isfinite(scale).all()
