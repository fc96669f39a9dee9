from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.protocols import LearningRate
from edged.engines.runtime.lr_schedule import Schedule, rate_at

RATES = st.builds(
    LearningRate,
    initial=st.floats(1e-6, 1.0),
    warmup=st.integers(0, 50),
    total=st.one_of(st.just(0), st.integers(51, 500)),
)


@given(RATES, st.integers(0, 1000))
def test_the_rate_stays_between_zero_and_the_initial_one(rate: LearningRate, step: int) -> None:
    assert 0 <= rate_at(rate, step) <= rate.initial


@given(RATES)
def test_no_step_of_a_run_is_wasted_and_the_warm_up_ends_at_the_initial_rate(rate: LearningRate) -> None:
    assert all(rate_at(rate, step) > 0 for step in range(rate.total))
    assert rate_at(rate, rate.warmup) == pytest.approx(rate.initial)


@given(RATES, st.integers(0, 100))
def test_a_resumed_schedule_goes_on_where_it_was(rate: LearningRate, at: int) -> None:
    straight, resumed = Schedule(rate), Schedule(rate, at)
    for _ in range(at):
        straight.advance()
    assert [straight.advance() for _ in range(5)] == [resumed.advance() for _ in range(5)]


def test_without_a_total_the_rate_is_constant_after_the_warm_up() -> None:
    rate = LearningRate(0.5, warmup=2)
    assert [rate_at(rate, step) for step in (0, 1, 2, 10**9)] == [0.25, 0.5, 0.5, 0.5]


def test_the_decay_ends_at_zero_and_stays_there() -> None:
    rate = LearningRate(1.0, total=4)
    assert [rate_at(rate, step) for step in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
