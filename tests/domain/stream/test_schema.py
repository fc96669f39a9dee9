from typing import Any

import numpy as np
import pytest

from edged.domain.stream.schema import Schema
from edged.errors import ConfigError, RejectedSampleError

GEARS = Schema((), 3, "classify", ("ok", "worn", "broken"))


@pytest.mark.parametrize(("value", "index"), [("worn", 1), (2, 2), (0.0, 0), (True, 1)])
def test_labels_become_class_indices(value: Any, index: float) -> None:
    assert GEARS.parse_label(value) == index


@pytest.mark.parametrize("value", ["missing", 3, -1, 0.5, None, [1], float("nan"), {"a": 1}])
def test_a_label_outside_the_classes_is_rejected(value: Any) -> None:
    with pytest.raises(RejectedSampleError) as caught:
        GEARS.parse_label(value)
    assert caught.value.reason == "label"


@pytest.mark.parametrize("value", ["1.5", None, True, float("inf"), 1e300, 10**400, [1.0, 2.0]])
def test_a_target_that_is_no_finite_number_is_rejected(value: Any) -> None:
    with pytest.raises(RejectedSampleError):
        Schema((), 3, "regress").parse_label(value)


def test_a_target_above_the_cap_counts_as_the_cap() -> None:
    life = Schema((), 3, "regress", target_max=125.0)
    assert [life.parse_label(value) for value in (300, 125, 7.5)] == [125.0, 125.0, 7.5]
    assert Schema((), 3, "regress", targets=2, target_max=10.0).parse_label([3, 11]) == (3.0, 10.0)
    with pytest.raises(RejectedSampleError):
        life.parse_label(float("inf"))


def test_rows_that_would_destroy_the_weights_are_found() -> None:
    x = np.ones((5, 3), np.float32)
    x[1, 2] = np.nan
    y = np.array([[0], [1], [3], [-1], [2]], np.float32)
    assert GEARS.check(x, y).tolist() == [True, False, False, False, True]


def test_impossible_streams_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one feature"):
        Schema((), 0, "regress")
    with pytest.raises(ConfigError, match="two classes"):
        Schema((), 2, "classify", ("only",))


def test_classes_named_by_numbers_are_names_not_positions() -> None:
    grades = Schema((), 1, "classify", ("1", "2", "3"))
    assert [grades.parse_label(v) for v in (1, 2.0, "3")] == [0, 1, 2]
    with pytest.raises(RejectedSampleError):
        grades.parse_label(0)
    assert Schema((), 1, "classify", ("0", "1")).parse_label(1) == 1
