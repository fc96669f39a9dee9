from __future__ import annotations

from math import isnan

import numpy as np
import pytest

from edged.workbench.experiments.confidence_interval import mean_interval, t_quantile

# Two-sided 95 % and 99 % points as printed in tables of Student's distribution.
TABLE = [(1, 12.706, 63.657), (2, 4.303, 9.925), (3, 3.182, 5.841), (4, 2.776, 4.604), (9, 2.262, 3.250),
         (10, 2.228, 3.169), (30, 2.042, 2.750), (99, 1.984, 2.626)]  # fmt: skip


@pytest.mark.parametrize(("freedom", "at_95", "at_99"), TABLE)
def test_quantiles_are_those_of_the_tables(freedom: int, at_95: float, at_99: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(at_95, abs=6e-4)
    assert t_quantile(0.995, freedom) == pytest.approx(at_99, abs=6e-4)


def test_an_interval_holds_the_mean_in_as_many_cases_as_it_says() -> None:
    rng = np.random.default_rng(0)
    draws = rng.normal(3.0, 2.0, (4000, 4))
    intervals = [mean_interval(row.tolist()) for row in draws]
    held = np.mean([interval.low <= 3.0 <= interval.high for interval in intervals])
    assert held == pytest.approx(0.95, abs=0.015)


def test_one_value_has_no_interval_and_equal_ones_a_narrow_one() -> None:
    single = mean_interval([0.7])
    assert single.mean == 0.7
    assert isnan(single.low)
    assert isnan(single.high)
    assert all(map(isnan, mean_interval([0.7, float("nan")])))
    assert mean_interval([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.5)
