"""Stuck sensors: told once, told again when they move, and never for what is meant to stand still."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edged.domain.stream import admission
from edged.domain.stream.admission import MOVES, PATIENCE, FlatlineDetector, StuckSensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

AFTER = 20


class Plain:
    """The same rule for one feature of one key, one reading after the other."""

    def __init__(self) -> None:
        self.last: float | None = None
        self.still = self.longest = self.moves = 0
        self.stuck = False

    def follow(self, values: list[float]) -> bool | None:
        """Whether it is stuck after a batch; None when that did not change."""
        was = self.stuck
        for value in values:
            if value == self.last:
                self.still += 1
                continue
            if self.last is not None:
                self.longest = max(self.longest, self.still)
                self.moves += 1
            self.last, self.still = value, 0
        if self.stuck:
            self.stuck = self.still >= AFTER
        elif self.moves >= MOVES and self.still >= max(AFTER, PATIENCE * self.longest):
            self.stuck = True
        return self.stuck if self.stuck != was else None


def column(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32).reshape(-1, 1)


def moving(n: int) -> NDArray[np.float32]:
    return column(*range(n))


def test_a_sensor_that_stops_is_told_once_and_again_when_it_moves() -> None:
    watch = FlatlineDetector(1, AFTER)
    assert watch.update(["k"] * 30, moving(30)) == []
    assert watch.update(["k"] * (AFTER - 1), column(*[29.0] * (AFTER - 1))) == []
    assert watch.update(["k"], column(29)) == [StuckSensor("k", True, (0,))]
    assert watch.stuck == 1
    assert watch.update(["k"] * 50, column(*[29.0] * 50)) == []
    assert watch.update(["k"], column(30)) == [StuckSensor("k", False, (0,))]
    assert watch.stuck == 0


def test_what_has_never_moved_or_often_rests_is_not_stuck() -> None:
    watch = FlatlineDetector(2, AFTER)
    door = np.repeat(np.arange(20), 100).astype(np.float32)  # moves every 100 readings
    for start in range(0, 2000, 250):
        x = np.stack([np.zeros(250), door[start : start + 250]], axis=1).astype(np.float32)
        assert watch.update(["k"] * 250, x) == []
    still = np.stack([np.zeros(880), np.full(880, 19)], axis=1).astype(np.float32)
    assert watch.update(["k"] * 880, still) == [], "ten times its longest rest has not passed"
    assert watch.update(["k"] * 20, still[:20]) == [StuckSensor("k", True, (1,))]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1)), min_size=1, max_size=120),
        min_size=1,
        max_size=12,
    )
)
def test_whole_batches_say_what_single_readings_would(batches: list[list[tuple[str, int]]]) -> None:
    watch, plain = FlatlineDetector(1, AFTER), {key: Plain() for key in "abc"}
    for batch in batches:
        told = {
            change.key: change.stuck
            for change in watch.update([k for k, _ in batch], column(*[float(v) for _, v in batch]))
        }
        expected = {key: rule.follow([float(v) for k, v in batch if k == key]) for key, rule in plain.items()}
        assert told == {key: state for key, state in expected.items() if state is not None}


def test_many_keys_grow_it_up_to_a_limit() -> None:
    watch = FlatlineDetector(4, AFTER)
    n = admission.MOST_WATCHED + 500
    keys = [f"k{number}" for number in range(n)]
    rng = np.random.default_rng(0)
    for _ in range(MOVES + 1):
        assert watch.update(keys, rng.normal(size=(n, 4)).astype(np.float32)) == []
    frozen = rng.normal(size=(n, 4)).astype(np.float32)
    told = [change for _ in range(AFTER + 2) for change in watch.update(keys, frozen)]
    assert len(told) == admission.MOST_WATCHED
    assert {change.features for change in told} == {(0, 1, 2, 3)}
    assert watch.stuck == 4 * admission.MOST_WATCHED
