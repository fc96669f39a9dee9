"""The daemon's own quantiles are numpy's."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from edged.domain.arrays import quantiles

NUMBERS = st.floats(-1e9, 1e9) | st.just(float("nan"))
SHARES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5)


@settings(deadline=None)  # a machine may have other work
@given(arrays(np.float64, array_shapes(min_dims=1, max_dims=2, max_side=40), elements=NUMBERS), SHARES)
def test_they_are_those_of_numpy(values: np.ndarray, shares: list[float]) -> None:
    before = values.copy()
    np.testing.assert_array_equal(quantiles(values, shares), np.quantile(values, shares, axis=0))
    np.testing.assert_array_equal(values, before)


def test_of_one_value_all_are_that_one() -> None:
    assert quantiles(np.array([2.5]), [0.0, 0.3, 1.0]).tolist() == [2.5, 2.5, 2.5]
