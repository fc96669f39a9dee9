"""The closed-form head of a stream learns each label, and all again when some were erased or changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from edged.domain.judging.ridge_head import RidgeHead
from edged.domain.seeded_rng import is_holdout
from edged.domain.stream.sample import Window
from edged.domain.stream.schema import Schema
from edged.errors import StorageError
from edged.logs import disk_may_refuse, get_logger
from edged.storage.samples.log import SampleLog

log = get_logger("edged.serve")

NEWEST, PART = 5000, 500  # labels that are learned again from the log, and how many at once


class HeadTeacher:
    """Teaches `head`, where a stream has one; labels that are kept for judging (`holdout`) it never learns.

    `samples` is the log: labels are learned again from there, so that nothing erased is left. `teach` and
    `refresh` are called by one thread at a time, `forget` from any.
    """

    def __init__(self, head: RidgeHead | None, samples: SampleLog, schema: Schema, holdout: float) -> None:
        self._head, self._samples, self._schema, self._holdout = head, samples, schema, holdout
        self._stale = True
        self._classes_seen = 0

    @property
    def missing(self) -> str | None:
        """Labels that the head lacks to answer every class, such as `7 of 20 labels`; None for none."""
        if self._head is None:
            return None
        opened = self._schema.open
        there, needed = self._head.progress(range(self._schema.outputs) if opened is None else opened.places)
        return None if there == needed else f"{there} of {needed} labels"

    def forget(self) -> None:
        """Labels were erased or changed: learn the remaining ones again before the next answer."""
        self._stale = True

    def teach(
        self, offsets: NDArray[np.int64], y: NDArray[np.float32], x: NDArray[np.float32] | None
    ) -> None:
        """Learn labels `y` `(n, 1)` of samples `x` `(n, d)`, which are read where they are not at hand."""
        if self._head is None or self._stale:
            return  # what is stale learns from the log, which has these labels
        mine = ~is_holdout(offsets, self._holdout)
        if x is not None:
            places = y[mine, 0].astype(np.int64)
            new = not set(places.tolist()) <= set(self._head.first)
            # They might not be on disk yet: then their positions are the next ones.
            self._learn(x[mine], places, np.full(len(places), self._samples.last_seq() + 1 if new else 0))
            return
        try:
            window = self._samples.rows(offsets[mine])
        except StorageError as problem:
            log.warning("head_missed_labels", problem=problem.line())
            return
        self._learn(window.x, window.y[:, 0].astype(np.int64), window.seq)

    def _learn(self, x: NDArray[np.float32], y: NDArray[np.int64], seq: NDArray[np.int64]) -> None:
        """Learn rows `(n, d)` of classes `y` `(n,)`, which came at positions `seq` `(n,)` in label order."""
        if self._head is not None and len(seq):
            if not self._head.first:
                self._head.since = int(seq[0])
            for place, position in zip(y.tolist(), seq.tolist(), strict=True):
                self._head.first.setdefault(place, position)
            self._head.learn(x, y)

    @property
    def behind(self) -> bool:
        """True if `refresh` has something to learn."""
        opened = self._schema.open
        revision = 0 if opened is None else opened.revision
        return self._head is not None and (self._stale or revision != self._classes_seen)

    def refresh(self) -> None:
        """Learn the newest labels of the log again if some of them have changed."""
        if self._head is None or not (self._stale or self._classes_changed()):
            return
        self._stale = False
        self._head.clear()
        with disk_may_refuse(log, "head_missed_labels"):
            for window in self._newest():
                self._learn(window.x, window.y[:, 0].astype(np.int64), window.seq)

    def _newest(self) -> Iterator[Window]:
        """Yield the newest labels of the log, oldest first, part after part."""
        for after, upto in pairwise(self._samples.training_parts(0, NEWEST, PART)):
            yield self._samples.training_window(after, PART, upto_seq=upto)

    def _classes_changed(self) -> bool:
        """Return whether classes have come, gone or become one since the last call."""
        opened = self._schema.open
        seen, self._classes_seen = self._classes_seen, 0 if opened is None else opened.revision
        return seen != self._classes_seen
