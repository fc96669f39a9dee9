"""Raw outputs become probabilities and likelihoods, one row at a time or many."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.judging.outputs import FEW, log_likelihoods, probabilities


@pytest.mark.parametrize("classes", [1, 2, 6, FEW, FEW + 1])
def test_a_single_row_gets_what_it_gets_among_others(classes: int) -> None:
    rows = np.random.default_rng(0).normal(scale=8, size=(50, classes)).astype(np.float32)
    together = probabilities(rows)
    apart = np.concatenate([probabilities(row[None]) for row in rows])
    assert apart.dtype == np.float32
    np.testing.assert_allclose(apart, together, rtol=1e-5, atol=1e-12)
    apart = np.concatenate([log_likelihoods(row[None]) for row in rows])
    assert apart.dtype == np.float32
    np.testing.assert_allclose(apart, log_likelihoods(rows), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "row", [[np.nan, 1.0, 800.0], [800.0, np.nan, 1.0], [-3e38, 3e38, 0.0]], ids=["nan first", "nan", "far"]
)
def test_what_a_row_cannot_answer_is_nan_throughout(row: list[float]) -> None:
    one = np.array([row], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        many = probabilities(np.repeat(one, 2, axis=0))
    np.testing.assert_array_equal(probabilities(one), many[:1])
