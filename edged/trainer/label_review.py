"""A review of stored labels, in the trainer's process: the daemon could not spare the memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edged.domain.labels.label_review import FLOOR, ReviewedLabels, class_map, drawn, review
from edged.domain.protocols import Throttle
from edged.domain.stream.sample import Window
from edged.domain.training.trainer_messages import LabelReview, ReviewLabels, SampleMap, SuspectLabel
from edged.storage.samples.log import SampleLog
from edged.trainer.task import LearningTask

MOST_LABELS, MOST_BYTES = 20_000, 32 << 20  # the newest that are looked at, and their inputs
JUDGING = 4  # for each label kept for judging so many others
MOST_SUSPECTS, MOST_POINTS = 300, 2000
NOTHING = LabelReview(0, (), SampleMap((), (), (), (), ()))


class LabelReviewer:
    """Reviews the newest labels of a stream of classes, also those that are kept for judging."""

    def __init__(self, task: LearningTask, samples: SampleLog, control: Throttle) -> None:
        self._schema, self._samples, self._control = task.schema, samples, control

    def review(self, order: ReviewLabels) -> LabelReview:
        """Return the most suspect labels and the map; empty ones where there are too few labels."""
        schema = self._schema
        window = self._window()
        y = window.y[:, 0].astype(np.int64)
        found = review(window.x, y, schema.outputs, schema.measured, self._control)
        if found is None:
            return NOTHING
        confirmed = np.isin(window.offsets, order.confirmed)
        return LabelReview(len(y), _suspects(found, y, window.offsets, confirmed), _points(found, y, window))

    def _window(self) -> Window:
        most = min(MOST_LABELS, MOST_BYTES // (4 * self._schema.width))
        learned = self._samples.training_window(0, most)
        judging = self._samples.holdout_window(most // JUDGING)
        if len(learned):
            judging = judging.take(judging.seq >= learned.seq[0])
        both = judging.followed_by(learned)
        good = self._schema.check(both.x, both.y)
        both = both.take(good)
        return both.take(np.argsort(both.seq))


def _suspects(
    found: ReviewedLabels, y: NDArray[np.int64], offsets: NDArray[np.int64], confirmed: NDArray[np.bool_]
) -> tuple[SuspectLabel, ...]:
    suspicion = np.where(confirmed, -np.inf, found.suspicion(y))
    order = np.argsort(-suspicion, kind="stable")[:MOST_SUSPECTS]
    return tuple(
        SuspectLabel(
            int(offsets[at]), int(y[at]), answer, _short(found.p[at, y[at]]), _short(found.p[at, answer])
        )
        for at in order[suspicion[order] > 0]
        for answer in [_other(found.p[at], int(y[at]))]
    )


def _other(p: NDArray[np.float32], label: int) -> int:
    others = p.copy()
    others[label] = -FLOOR
    return int(others.argmax())


def _points(found: ReviewedLabels, y: NDArray[np.int64], window: Window) -> SampleMap:
    chosen = drawn(y, MOST_POINTS)
    p = found.p[chosen]
    places = class_map(found.scores[chosen], p, window.x[chosen])
    x, up = (tuple(map(_short, column)) for column in places.T.tolist())
    sure = tuple(map(_short, p.max(axis=1).tolist()))
    return SampleMap(tuple(window.offsets[chosen].tolist()), x, up, tuple(p.argmax(axis=1).tolist()), sure)


def _short(value: float) -> float:
    return round(float(value), 3)
