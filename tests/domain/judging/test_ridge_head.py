"""The closed-form head: equal to ridge regression, at once, calibrated, and unmoved by a glitch."""

from __future__ import annotations

import numpy as np
import pytest

from edged.domain.judging import ridge_head
from edged.domain.judging.outputs import probabilities
from edged.domain.judging.ridge_head import RidgeHead
from edged.domain.stream.schema import Schema


def task(n: int, seed: int = 0, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    """Samples `(n, 6)`, of which the last two columns are context, and their three classes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(3, 2, (n, 6)).astype(np.float32)
    y = (x[:, :3] + rng.normal(0, noise, (n, 3))).argmax(axis=1)
    return x, y


def made() -> RidgeHead:
    return RidgeHead(6, 4, 3)


def shares(head: RidgeHead, x: np.ndarray) -> np.ndarray:
    return probabilities(head.likelihoods(x))


def test_it_is_weighted_ridge_regression_in_closed_form() -> None:
    x, y = task(300)
    head = made()
    head.learn(x, y)
    weight = 0.5 ** (np.arange(300)[::-1] / ridge_head.HALF_LIFE)
    mean = np.average(x.astype(float), axis=0, weights=weight)
    deviation = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weight))
    z, target = (x - mean) / deviation, np.eye(3)[y]
    penalty = np.diag([10.0] * 4 + [100.0] * 2)
    prior = np.average(target, axis=0, weights=weight)
    weights = np.linalg.solve(
        z.T @ (weight[:, None] * z) + penalty, z.T @ (weight[:, None] * (target - prior))
    )
    logits = 5.0 * (prior + np.clip(z, -5, 5) @ weights)
    np.testing.assert_allclose(shares(head, x), probabilities(logits.astype(np.float32)), atol=2e-4)


def test_labels_one_by_one_and_at_once_are_the_same() -> None:
    x, y = task(19)
    head, other = made(), made()
    head.learn(x, y)
    for i in range(19):
        other.learn(x[i : i + 1], y[i : i + 1])
    other._sharpness = head._sharpness  # noqa: SLF001  follows what was said before each label
    np.testing.assert_allclose(shares(head, x), shares(other, x), atol=1e-6)


def test_each_of_the_first_labels_takes_effect_and_two_of_a_class_are_enough() -> None:
    x, y = np.eye(6, dtype=np.float32)[[0, 1, 0, 1]] * 4, np.array([0, 1, 0, 1])
    head = made()
    assert head.likelihoods(x).tolist() == np.zeros((4, 3)).tolist()
    told = []
    for i in range(4):
        head.learn(x[i : i + 1], y[i : i + 1])
        told.append((head.progress(range(3)), bool(head.likelihoods(x).any())))
    assert told == [((1, 6), False), ((2, 6), False), ((3, 6), False), ((4, 6), True)]
    assert shares(head, x).argmax(axis=1).tolist() == y.tolist()


def test_a_class_that_comes_late_is_answered_after_three_labels() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(0, 1, (400, 6)).astype(np.float32)
    x[200:, :2] += 5
    y = np.repeat([0, 1], 200)
    head = made()
    head.learn(x[:203], y[:203])
    right = shares(head, x).argmax(axis=1) == y
    assert right[:200].mean() > 0.9
    assert right[203:].mean() > 0.9


def test_most_answers_are_right_after_sixty_labels() -> None:
    head = made()
    head.learn(*task(60))
    x, y = task(1000, 1)
    assert (shares(head, x).argmax(axis=1) == y).mean() > 0.8


def test_it_is_as_sure_as_it_is_right() -> None:
    head, gap = made(), []
    for seed in range(40):
        x, y = task(50, seed, noise=3.0)
        if seed > 10:
            said = shares(head, x)
            gap.append(said.max(axis=1).mean() - (said.argmax(axis=1) == y).mean())
        head.learn(x, y)
    assert abs(np.mean(gap)) < 0.03


def test_one_impossible_row_moves_little_and_rows_that_are_not_finite_nothing() -> None:
    x, y = task(200)
    head, other = made(), made()
    for one in (head, other):
        one.learn(x, y)
    other.learn(np.array([[1e6] * 6, [np.nan] * 6], np.float32), np.array([0, 1]))
    for one in (head, other):
        one.learn(*task(100, 2))
    later, right = task(500, 3)
    quality = [(shares(one, later).argmax(axis=1) == right).mean() for one in (head, other)]
    assert quality[1] > quality[0] - 0.02
    assert other.labels == head.labels + 1


def test_it_follows_a_world_that_changed() -> None:
    head = made()
    for seed in range(20):
        head.learn(*task(100, seed))
    for seed in range(20, 80):
        x, y = task(100, seed)
        head.learn(x, (y + 1) % 3)
    x, y = task(500, 99)
    assert (shares(head, x).argmax(axis=1) == (y + 1) % 3).mean() > 0.8


def test_a_constant_feature_and_one_of_another_scale_do_no_harm() -> None:
    x, y = task(100)
    x[:, 3], x[:, 4] = 7.0, x[:, 4] * 1e7
    head = made()
    head.learn(x, y)
    assert np.isfinite(head.likelihoods(x)).all()
    assert (shares(head, x).argmax(axis=1) == y).mean() > 0.8


@pytest.mark.parametrize(
    ("width", "context", "columns"),
    [
        (8, (), 8),
        (4 * 72, (3.0, 12.0, 48.0), 288),
        (4 * 200, (3.0, 12.0, 48.0), 200),
        (4 * 600, (3.0, 12.0, 48.0), 0),
    ],
)
def test_wide_streams_go_without_context_and_very_wide_ones_without_a_head(
    width: int, context: tuple[float, ...], columns: int
) -> None:
    head = RidgeHead.of(Schema((), width, "classify", ("a", "b"), context=context))
    assert (0 if head is None else head.columns) == columns
    assert RidgeHead.of(Schema((), width, "regress", context=context)) is None


def test_a_class_that_comes_late_is_known_by_its_first_labels() -> None:
    """Solved only as all labels grow, it would be answered no sooner than after a twentieth of them more."""
    rng = np.random.default_rng(0)
    head = RidgeHead(2, 2, 2)
    head.learn(rng.normal(0, 1, (400, 2)).astype(np.float32), np.zeros(400, np.int64))
    late = rng.normal(8, 1, (8, 2)).astype(np.float32)
    for row in late:
        head.learn(row[None], np.ones(1, np.int64))
    assert head.likelihoods(late).argmax(axis=1).tolist() == [1] * 8


def test_a_row_is_answered_as_if_it_had_not_been_learned() -> None:
    x, y = task(80, noise=0.8)
    y[::9] = (y[::9] + 1) % 3  # wrong labels, which a head that has learned them partly believes
    head = made()
    assert head.answers(x).tolist() == [-1] * 80
    head.learn(x, y)
    without = []
    for i in range(80):
        other = made()
        other.learn(np.delete(x, i, axis=0), np.delete(y, i))
        without.append(int(other.answers(x[i : i + 1])[0]))
    assert (head.answers(x, left_out=y) == without).mean() > 0.97
    assert (head.answers(x) == y).mean() > (np.array(without) == y).mean()
    assert head.answers(x).tolist() == shares(head, x).argmax(axis=1).tolist()
