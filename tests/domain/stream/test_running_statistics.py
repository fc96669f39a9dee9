import numpy as np
import pytest

from edged.domain.stream.running_statistics import RunningMoments


def test_the_first_samples_count_as_a_plain_average() -> None:
    x = np.random.default_rng(0).normal(5, 3, (400, 4)).astype(np.float32)
    moments = RunningMoments(1000)
    for part in np.split(x, 8):
        moments.update(part)
    mean, scale = moments.scale()
    assert mean == pytest.approx(x.mean(axis=0), abs=0.15)
    assert scale == pytest.approx(1 / x.std(axis=0), rel=0.05)


def test_half_of_the_weight_is_gone_after_a_half_life() -> None:
    moments = RunningMoments(100, np.zeros(1), np.ones(1), 1.0)
    moments.update(np.full((100, 1), 8, np.float32))
    assert moments.mean is not None
    assert moments.mean[0] == pytest.approx(4.0)


def test_rows_with_nan_do_not_count() -> None:
    moments = RunningMoments(10)
    moments.update(np.array([[1.0], [np.nan], [3.0], [np.inf]], np.float32))
    assert moments.scale()[0][0] == pytest.approx(2.0)


def test_a_constant_feature_is_not_blown_up() -> None:
    moments = RunningMoments(10)
    moments.update(np.full((50, 1), 7.25, np.float32))
    mean, scale = moments.scale()
    assert (mean[0], scale[0]) == (7.25, 1.0)


def test_a_graphs_own_statistics_are_taken_over_unchanged() -> None:
    mean, scale = np.array([3.0, -1.0], np.float32), np.array([0.5, 2.0], np.float32)
    again_mean, again_scale = RunningMoments.of_scale(100, mean, scale).scale()
    assert again_mean == pytest.approx(mean)
    assert again_scale == pytest.approx(scale, rel=1e-5)
