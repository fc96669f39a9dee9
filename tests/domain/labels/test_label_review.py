"""Labels are judged without themselves: the falsified ones come first, and the map is the same each time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from edged.domain.labels import label_review
from edged.domain.labels.label_review import class_map, drawn, review
from edged.errors import TrainingError
from tests.streams import stream

if TYPE_CHECKING:
    from numpy.typing import NDArray


def falsified(y: NDArray[np.int64], classes: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A tenth of the labels names another class."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(len(y)) < 0.1
    return np.where(wrong, (y + rng.integers(1, classes, len(y))) % classes, y), wrong


@pytest.mark.parametrize("name", ["digits", "occupancy"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_falsified_labels_are_among_the_first(name: str, seed: int, tmp_path: Path) -> None:
    recorded = stream(name, tmp_path)
    x, truth = recorded.x[-3000:], recorded.y[-3000:]
    y, wrong = falsified(truth, int(truth.max()) + 1, seed)
    found = review(x, y, int(truth.max()) + 1, x.shape[1])
    assert found is not None
    order = np.argsort(-found.suspicion(y), kind="stable")
    assert wrong[order[: round(0.15 * len(y))]].sum() >= 0.8 * wrong.sum()
    assert np.allclose(found.p.sum(axis=1), 1, atol=1e-5)


def test_a_label_does_not_vouch_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is said of a row is what a fit says that never had it, to the last digits.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    flipped = y.copy()
    flipped[7] = 1 - y[7]
    before, after = review(x, y, 2, 3), review(x, flipped, 2, 3)
    assert before is not None
    assert after is not None
    assert np.allclose(before.scores[7], after.scores[7], atol=1e-6)
    assert not np.allclose(before.scores[8], after.scores[8], atol=1e-6)
    monkeypatch.setattr(label_review, "STRETCH", 60)
    apart = review(x, y, 2, 3)
    assert apart is not None
    assert not np.allclose(before.scores, apart.scores, atol=1e-3)


def test_classes_with_few_labels_are_not_judged() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    y[:3] = 2
    found = review(x, y, 4, 2)
    assert found is not None
    suspicion = found.suspicion(y)
    assert np.isneginf(suspicion[:3]).all()
    assert np.isfinite(suspicion[3:]).all()
    assert review(x[:30], y[:30], 4, 2) is None
    assert review(x, np.zeros(100, np.int64), 4, 2) is None
    assert review(x[:0], y[:0], 4, 2) is None


def test_one_impossible_value_moves_nothing() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 4)).astype(np.float32)
    y, wrong = falsified((x[:, 0] > 0).astype(np.int64), 2, 1)
    x[1000] = 1e9
    found = review(x, y, 2, 4)
    assert found is not None
    order = np.argsort(-found.suspicion(y), kind="stable")
    assert wrong[order[:300]].sum() >= 0.8 * wrong.sum()


class Stopping:
    """Asks to stop after some parts."""

    def __init__(self, parts: int) -> None:
        self._left = parts

    @property
    def stopping(self) -> bool:
        return self._left <= 0

    def throttle(self, seconds: float) -> None:
        assert seconds >= 0
        self._left -= 1


def test_it_rests_between_parts_and_stops_when_asked() -> None:
    x = np.random.default_rng(0).normal(size=(2500, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    assert review(x, y, 2, 2, Stopping(7)) is not None
    with pytest.raises(TrainingError, match="asked to stop"):
        review(x, y, 2, 2, Stopping(5))


def test_points_are_drawn_from_all_classes_and_times() -> None:
    y = np.array([0] * 5000 + [1] * 700 + [2] * 9)
    chosen = drawn(y, 600)
    assert len(chosen) == 600
    assert (np.diff(chosen) > 0).all()
    assert np.bincount(y[chosen]).tolist() == [296, 295, 9]
    assert np.diff(chosen[y[chosen] == 0]).max() <= 18
    assert drawn(y[:100], 600).tolist() == list(range(100))
    assert len(drawn(y[:0], 600)) == 0


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_the_map_keeps_classes_apart_and_is_the_same_each_time(classes: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 900)
    x = (4 * np.eye(8)[y] + rng.normal(size=(900, 8))).astype(np.float32)
    found = review(x, y, classes, 8)
    assert found is not None
    places = class_map(found.scores, found.p, x)
    assert np.array_equal(places, class_map(found.scores, found.p, x))
    assert (np.abs(places) <= 1).all()
    assert (places.std(axis=0) > 0.1).all(), "both axes are used"
    centres = np.array([places[y == one].mean(axis=0) for one in range(classes)])
    nearest = ((places[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == y).mean() > 0.85
