"""What the trainer says of the labels in a sample log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edged.domain.training.message import decode, encode
from edged.domain.training.trainer_messages import ReviewLabels
from edged.trainer import label_review
from edged.trainer.label_review import NOTHING, LabelReviewer
from tests.device.learning_rig import Control, Workshop, task

if TYPE_CHECKING:
    import pytest

    from edged.domain.training.trainer_messages import LabelReview
    from edged.storage.models.bundles import Bundle


def reviewer(shop: Workshop) -> LabelReviewer:
    return LabelReviewer(shop.task, shop.log, Control([], lambda: False, lambda: False))


def test_wrong_labels_are_named_unless_they_are_confirmed(tmp_path: Path, bundle: Bundle) -> None:
    shop = Workshop(tmp_path, bundle)
    x, labels = task(1200)
    truth = [label for label in labels if isinstance(label, float)]
    wrong = set(np.random.default_rng(0).permutation(1200)[:120].tolist())
    said = [float((label + 1) % 3 if i in wrong else label) for i, label in enumerate(truth)]
    offsets = shop.feed(x, list(said)).tolist()
    judge = reviewer(shop)
    found = judge.review(ReviewLabels(0, ()))
    assert found.labels == 1200, "those that are kept for judging, too"
    first = {one.offset for one in found.suspects[:180]}
    assert len(first & {offsets[i] for i in wrong}) >= 96
    for one in found.suspects:
        assert one.label != one.answer
        assert one.label_confidence <= one.confidence
    top = found.suspects[0].offset
    again = judge.review(ReviewLabels(0, (top,)))
    assert top not in {one.offset for one in again.suspects}
    assert again.points == found.points
    assert sorted(found.points.offsets) == offsets
    assert decode(_sent(found), [ReviewLabels.result()]) == found


def _sent(found: LabelReview) -> object:
    return json.loads(encode(found))


def test_it_is_bounded_and_takes_the_newest(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Workshop(tmp_path, bundle)
    assert reviewer(shop).review(ReviewLabels(0, ())) == NOTHING
    offsets = shop.feed(*task(3000))
    monkeypatch.setattr(label_review, "MOST_LABELS", 1000)
    monkeypatch.setattr(label_review, "MOST_POINTS", 90)
    found = reviewer(shop).review(ReviewLabels(0, ()))
    assert 1000 < found.labels <= 1250
    assert len(found.points.offsets) == 90
    assert min(found.points.offsets) >= offsets[-1300]
    monkeypatch.setattr(label_review, "MOST_BYTES", 500 * 4 * shop.schema.width)
    assert 500 < reviewer(shop).review(ReviewLabels(0, ())).labels <= 625
