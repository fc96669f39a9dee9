"""What a run draws its batches from: new and remembered samples, and how often each of them is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edged.domain.training.batch_pool import BatchPool, Remembered
from edged.domain.training.caches import KeyCache, RowCache
from edged.domain.training.trainer_messages import BadSamples

if TYPE_CHECKING:
    from edged.domain.protocols import RunControl, Samples
    from edged.domain.stream.sample import Window
    from edged.domain.training.learner_state import LearnerState, RunPlan
    from edged.trainer.task import LearningTask


class BatchSampler:
    """Reads the samples of runs, and reports those that cannot be learned from."""

    def __init__(self, task: LearningTask, samples: Samples, control: RunControl) -> None:
        self._task, self._samples, self._control = task, samples, control
        self._rows, self._keys = RowCache(samples), KeyCache(samples)

    def new_rows(self, plan: RunPlan) -> Window:
        """Read the samples that are new to a run."""
        limit = self._task.training.window
        new = self._samples.training_window(plan.after, limit, upto_seq=plan.upto)
        return self._usable(self._samples.bounded(new))

    def all_rows(self, state: LearnerState) -> Window:
        """Read the newest samples and the remembered ones, each once."""
        newest = self._samples.training_window(0, self._task.training.window)
        ids = state.remembered()
        more = self._samples.rows(ids[~np.isin(ids, newest.offsets)])
        return self._usable(more.followed_by(newest))

    def pool(self, new: Window, state: LearnerState) -> BatchPool:
        """Put new and remembered samples side by side, to draw a run's batches from."""
        rows = self._usable(self._rows.rows(state.remembered(), self._samples.relabelled()))
        remembered = Remembered(rows, state.recent.ids, state.memory.ids)
        pool = BatchPool(new, remembered, self._task.labels, set(state.excluded))
        if self._task.training.key_share < 1.0:
            pool.cap(self._keys.codes(pool.offsets), self._task.training.key_share)
        return pool

    def _usable(self, window: Window) -> Window:
        good = self._task.schema.check(window.x, window.y)
        if good.all():
            return window
        self._control.report(BadSamples(tuple(window.offsets[~good].tolist())))
        return window.take(good)
