import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edged.domain.judging import metrics

labels = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60)


@given(labels)
def test_accuracy_and_kappa_against_their_definitions(pairs: list[tuple[int, int]]) -> None:
    y, p = (np.array(column, float) for column in zip(*pairs, strict=True))
    got = metrics.classification(y, p, 4)
    assert got["accuracy"] == pytest.approx((y == p).mean())
    by_chance = sum((y == c).mean() * (p == c).mean() for c in range(4))
    expected = ((y == p).mean() - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0
    assert got["kappa"] == pytest.approx(expected)
    recalls = [(p[y == c] == c).mean() for c in range(4) if (y == c).any()]
    assert got["balanced_accuracy"] == pytest.approx(np.mean(recalls))


def test_regression_figures() -> None:
    got = metrics.regression(np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [2.0], [6.0]]))
    assert got == pytest.approx({"mae": 1.0, "rmse": np.sqrt(3.0), "r2": 1 - 9 / 2})


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), min_size=2, max_size=40))
def test_auroc_is_the_share_of_rightly_ordered_pairs(rows: list[tuple[int, int]]) -> None:
    y = np.array([r[0] for r in rows], float)
    score = np.array([r[1] for r in rows], float)
    got = metrics.detection(y, score, score > 2)["auroc"]
    ones, zeros = score[y == 1], score[y == 0]
    if len(ones) == 0 or len(zeros) == 0:
        assert np.isnan(got)
        return
    wins = (ones[:, None] > zeros[None, :]).mean() + 0.5 * (ones[:, None] == zeros[None, :]).mean()
    assert got == pytest.approx(wins)


def test_f1_of_alarms() -> None:
    y, alarm = np.array([1.0, 1, 0, 0]), np.array([1.0, 0, 1, 0])
    assert metrics.detection(y, alarm, alarm)["f1"] == pytest.approx(0.5)
