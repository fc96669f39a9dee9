"""Averaged weights, and when they are worth more than the weights themselves."""

import json
import math

import numpy as np
import pytest

from edged.domain.averaging import Average


def weights(value: float) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {"w": np.full((2, 2), value, np.float32), "b": np.full(2, -value, np.float32)}


def test_steps_taken_together_count_like_steps_one_by_one() -> None:
    one, together = Average(0.9), Average(0.9)
    for average in (one, together):
        average.follow(weights(0.0), 1)
    for _ in range(5):
        one.follow(weights(1.0), 1)
    together.follow(weights(1.0), 5)
    assert one.values is not None
    assert together.values is not None
    for name in ("w", "b"):
        np.testing.assert_allclose(one.values[name], together.values[name], rtol=1e-6)
    assert together.values["w"][0, 0] == pytest.approx(1 - 0.9**5)


def test_the_average_does_not_share_memory_with_the_weights() -> None:
    average, given = Average(0.5), weights(1.0)
    average.follow(given, 1)
    given["w"][...] = 9.0
    assert average.values is not None
    assert average.values["w"][0, 0] == 1.0


def test_it_is_taken_while_it_does_better_and_left_when_the_world_moves() -> None:
    average = Average(0.99)
    average.follow(weights(1.0), 1)
    chosen = [average.better]
    for averaged in [0.4, *[0.6] * 20]:
        average.judge(0.5, averaged, 100)
        chosen.append(average.better)
    assert chosen[:2] == [False, True]
    assert chosen[-1] is False


def test_a_loss_that_is_not_finite_says_nothing() -> None:
    average = Average(0.99)
    average.follow(weights(1.0), 1)
    average.judge(0.5, 0.4, 10)
    for own, averaged in ((math.nan, 0.1), (0.1, math.inf)):
        average.judge(own, averaged, 1000)
    assert average.better
    assert average.losses == pytest.approx((5.0, 4.0))


def test_it_comes_back_from_a_checkpoint() -> None:
    average = Average(0.9)
    average.follow(weights(1.0), 1)
    average.follow(weights(3.0), 4)
    average.judge(0.5, 0.4, 10)
    values, arrays = average.dump()
    again = Average.load(0.9, json.loads(json.dumps(values)), {**arrays, "memory_ids": np.arange(3)})
    assert again.better
    assert again.losses == average.losses
    assert again.values is not None
    assert average.values is not None
    assert {name: value.tobytes() for name, value in again.values.items()} == {
        name: value.tobytes() for name, value in average.values.items()
    }


def test_without_a_decay_nothing_is_kept() -> None:
    average = Average(0.0)
    average.follow(weights(1.0), 1)
    assert average.values is None
    assert not average.better
    assert Average.load(0.0, {}, {"average/w": np.zeros(2, np.float32)}).values is None
