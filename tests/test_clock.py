from __future__ import annotations

import pytest

from edged.clock import Ages, VirtualClock

YEARS = 10 * 365.25 * 86400.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1.8e9)


def test_without_steps_an_age_is_the_difference(clock: VirtualClock) -> None:
    ages, stamp = Ages(clock), clock.now()
    clock.advance_to(clock.now() + 5000.0)
    assert ages.age(stamp, clock.now()) == 5000.0


def test_what_was_stored_before_the_clock_was_set_forward_is_not_older_for_it(clock: VirtualClock) -> None:
    ages, first = Ages(clock), clock.now()
    clock.advance_to(clock.now() + 100.0)
    clock.step(YEARS)
    second = clock.now()
    clock.advance_to(clock.now() + 50.0)
    assert ages.age(first, clock.now()) == pytest.approx(150.0)
    assert ages.age(second, clock.now()) == pytest.approx(50.0)


def test_a_step_back_takes_the_step_forwards_back(clock: VirtualClock) -> None:
    ages, first = Ages(clock), clock.now()
    clock.step(YEARS)
    assert ages.age(first, clock.now()) == pytest.approx(0.0)
    clock.step(-YEARS)
    clock.advance_to(clock.now() + 30.0)
    assert ages.age(first, clock.now()) == pytest.approx(30.0)


def test_only_a_part_is_taken_back_where_the_clock_went_back_by_less(clock: VirtualClock) -> None:
    ages, first = Ages(clock), clock.now()
    clock.step(7200.0)
    assert ages.age(first, clock.now()) == pytest.approx(0.0)
    clock.step(-3600.0)
    assert ages.age(first, clock.now()) == pytest.approx(0.0)


def test_a_slow_correction_is_no_step(clock: VirtualClock) -> None:
    ages, first = Ages(clock), clock.now()
    for _ in range(100):
        clock.step(1.0)
        assert ages.age(first, clock.now()) > 0
    assert ages.age(first, clock.now()) == pytest.approx(100.0)
