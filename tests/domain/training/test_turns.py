"""Whose turn it is at the trainer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edged.domain.training.turns import Waiting, next_turn


def test_nobody_waits() -> None:
    assert next_turn([], 0.0) is None


def test_the_one_with_most_to_learn_goes_first() -> None:
    assert next_turn([Waiting("a", 50, 40), Waiting("b", 90, 40), Waiting(None, 60, 40)], 0.0) == Waiting(
        "b", 90, 40
    )


def test_a_drift_goes_before_labels() -> None:
    drifted = Waiting("a", 20, 40, urgent=True)
    assert next_turn([drifted, Waiting(None, 60, 40)], 0.0) is drifted


def test_of_equal_claims_the_oldest_goes_first() -> None:
    old = Waiting("b", 400, 40, since=1.0)
    assert next_turn([Waiting("a", 800, 40, since=1.0 + 1e-9), old], 5.0) is old


@given(st.integers(2, 60), st.floats(1.0, 30.0))
def test_no_flood_starves_a_key(floods: int, run_seconds: float) -> None:
    """Keys with endless labels, each of which waits again at once; one key with a single run's worth."""
    now, since = 0.0, {f"flood{i}": 0.0 for i in range(floods)}
    quiet = Waiting("quiet", 40, 40, since=0.0)
    turns, found = 0, None
    while found is not quiet:
        turns += 1
        waiting = [Waiting(key, 10**6, 40, since=start) for key, start in since.items()]
        found = next_turn([*waiting, quiet], now)
        assert found is not None
        now += run_seconds
        since[str(found.key)] = now
    # Waiting makes up for four runs' worth of labels, and then every flood had one turn at most.
    assert turns <= 4 * 60.0 / run_seconds + floods + 2
